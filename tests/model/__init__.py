"""A store, or a node, alone in simulation, by a seed: asked what no load of a cluster asks."""
