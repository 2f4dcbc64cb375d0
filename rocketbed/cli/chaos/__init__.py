"""`rocketbed chaos`."""
