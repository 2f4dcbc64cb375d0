"""Checks of replicas against each other, and of changes of the leader."""
