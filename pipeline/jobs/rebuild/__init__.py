"""The job `rocketbed pipeline rebuild`."""
