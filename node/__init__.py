"""A broker node: its store, its broker face, and the wiring of both."""
