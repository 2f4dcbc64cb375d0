"""Header encodings of a frame: RocketMQ's JSON and binary, and rocketbed's positional msgpack."""
