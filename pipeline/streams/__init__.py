"""Streaming reads: offsets, how far a batch may go, and what it reads."""
