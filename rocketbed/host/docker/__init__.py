"""Docker: daemon, containers, images and networks, without faults."""
