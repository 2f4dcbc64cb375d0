"""The job `rocketbed pipeline replay`."""
