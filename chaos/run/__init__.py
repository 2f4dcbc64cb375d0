"""Doing what a plan says, on any backend, and writing down what happened."""
