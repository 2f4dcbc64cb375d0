"""Disks of real nodes: volumes that lose power, a preloaded library."""
