"""Free ports on loopback for tests with real processes."""

import socket


def free_port() -> int:
    """A port P on which nobody listens, nor on P - 2 and P + 1, a moment ago."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
        if 3 < port < 65_000 and all(_is_free(port + step) for step in (-2, 0, 1)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
