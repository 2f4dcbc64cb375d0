"""One node's machine: its directory or volume, clock, processor and memory limits."""
