"""Records of a run: the history of operations, the trace of disks, the run's directory."""
