"""Replication: sending the log, following a master, counting the replicas that have it."""
