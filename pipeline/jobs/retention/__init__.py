"""The job `rocketbed pipeline retention`."""
