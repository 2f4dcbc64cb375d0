"""What this system can do for the testbed, tried and reported."""
