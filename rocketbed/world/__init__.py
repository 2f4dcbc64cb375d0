"""The seam between a node and everything outside it."""
