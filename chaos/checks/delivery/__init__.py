"""Checks of what readers, listeners and queries got."""
