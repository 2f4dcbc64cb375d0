"""rocketbed: a replicated message store and broker that keeps RocketMQ's files and protocol."""

__version__ = "0.1.0"
