"""The nameserver: which broker serves which topic, and who is alive."""
