"""Clusters for everyday use: started by one command, and outliving it."""
