"""Resources of the testbed on the host, which must be removed however it ends."""
