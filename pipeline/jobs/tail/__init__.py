"""The job `rocketbed pipeline tail`."""
