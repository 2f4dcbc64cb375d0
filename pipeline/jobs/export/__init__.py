"""The job `rocketbed pipeline export`."""
