"""Backends of a run: simulation, processes, containers, or another broker."""
