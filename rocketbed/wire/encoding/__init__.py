"""The three header encodings of a frame: RocketMQ's JSON and binary, and our positional msgpack."""
