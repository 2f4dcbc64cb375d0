"""Clusters whose members are containers."""
