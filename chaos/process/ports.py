"""Ports on loopback that nobody uses a moment before they are used."""

import socket
from collections.abc import Iterable

HOST = "127.0.0.1"
_LAST = 65_000


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def node_ports(port: int) -> tuple[int, int, int]:
    """What a node with this `listenPort` listens on: the port two below, it, replication."""
    return port - 2, port, port + 1


def free_port(taken: Iterable[int] = ()) -> int:
    """A port chosen by the system that is free and not among `taken`."""
    avoid = set(taken)
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in avoid:
            return port


def free_node_port(taken: Iterable[int] = ()) -> int:
    """A `listenPort` all of whose ports are free and none of which is among `taken`."""
    avoid = set(taken)
    while True:
        port = free_port(avoid)
        ports = node_ports(port)
        if port < _LAST and avoid.isdisjoint(ports) and all(is_free(one) for one in ports):
            return port
