"""Measurements: `make bench`, and with PEER=DIR the same load on a real broker in the same run."""
