"""Checks of sent messages against stored ones."""
