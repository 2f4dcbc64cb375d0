"""The client: producers, pull consumers, administration; RocketMQ's own clusters work too."""
