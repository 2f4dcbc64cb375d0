"""Replication: shipping the log, following a master, counting who has what."""
