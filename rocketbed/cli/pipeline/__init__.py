"""`rocketbed pipeline`."""
