"""A live cluster as rows: what brokers give to pulls."""
