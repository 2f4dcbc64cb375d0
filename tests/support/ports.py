"""Free ports on loopback for tests with real processes."""

from rocketbed.host.ports import free_node_port


def free_port() -> int:
    """A port P that is free, as are P - 2 and P + 1, and that no connection will be given."""
    return free_node_port()
