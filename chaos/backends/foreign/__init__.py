"""Brokers that are not ours, as the cluster under test (docs/guides/foreign.md)."""
