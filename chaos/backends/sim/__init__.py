"""Deterministic simulation: nodes, disks and a network in one process, from one seed."""
