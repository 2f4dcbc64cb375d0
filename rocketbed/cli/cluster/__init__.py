"""`rocketbed cluster`."""
