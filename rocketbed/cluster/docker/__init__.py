"""The same with containers for members."""
