"""Machine of a node: its directory or volume, clock, processor and memory limits."""
