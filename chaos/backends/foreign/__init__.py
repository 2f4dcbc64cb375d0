"""Brokers that are not ours, as the cluster under test (docs/foreign.md)."""
