"""The job `rocketbed pipeline verify`."""
