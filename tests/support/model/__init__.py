"""The executable model of failover: one state, explicit actions, the real decisions."""
