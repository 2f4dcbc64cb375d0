"""What the testbed puts on the host and must take away again, whatever ends it."""
