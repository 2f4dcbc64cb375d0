"""Clusters in containers, over the Docker SDK; the rest of the testbed does not import it."""
