"""Checks that everything works again after the faults."""
