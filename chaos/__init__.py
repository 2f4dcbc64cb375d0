"""The testbed: plans, runs, backends, evidence, checks, reports, and the search for failures."""
