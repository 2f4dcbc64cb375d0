"""The job `rocketbed pipeline audit`."""
