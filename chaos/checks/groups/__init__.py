"""Checks of consumer groups: commits, positions, subscriptions."""
