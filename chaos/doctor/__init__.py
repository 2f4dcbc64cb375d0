"""Abilities of this system for the testbed, tried and reported."""
