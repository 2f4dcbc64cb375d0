"""Where a cluster runs: in simulation, as processes, in containers, or as another broker."""
