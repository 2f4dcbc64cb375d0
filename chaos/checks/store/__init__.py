"""Checks of each node's directory: files, marks, tables, retention, recovery."""
