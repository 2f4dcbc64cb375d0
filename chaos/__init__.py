"""The testbed: simulation, real processes, histories, checkers, the trial."""
