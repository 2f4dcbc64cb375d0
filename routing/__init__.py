"""The nameserver: the brokers that are alive, and the topics that they serve."""
