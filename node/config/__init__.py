"""A node's configuration: RocketMQ's `broker.conf` and our own keys."""
