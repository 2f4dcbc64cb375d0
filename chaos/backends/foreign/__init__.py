"""Brokers of other projects as the cluster under test (docs/guides/foreign.md)."""
