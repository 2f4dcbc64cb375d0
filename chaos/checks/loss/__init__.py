"""The loss that the configuration and the faults of a run allow."""
