"""Planted bugs: each is put into the node, and the testbed has to find it (chaos.md 6)."""
