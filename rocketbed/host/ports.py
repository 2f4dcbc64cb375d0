"""Free ports on loopback.

They are taken from below the range from which the system gives ports to connections. A port of that
range would be free only while its server runs: once the server is killed, any connection may get
the port, and the server cannot come back.

That does not protect programs from each other: one may be given the port of another's server while
that is down. With `ROCKETBED_PORTS=20000-21999` in the environment each has a range of its own.
"""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from random import SystemRandom

from rocketbed.wire.errors import RocketbedError

HOST = "127.0.0.1"
NAMESERVER_PORT = 9876
NODE_PORT = 10911
"""Default ports of RocketMQ."""
FIRST = 10_000
"""First port used; below are the ports of well-known services."""
PORTS_VARIABLE = "ROCKETBED_PORTS"
"""Environment variable with the only ports that may be used, first and last."""
LEAST_PORTS = 100
"""Smallest usable range, because ports are drawn at random."""
TRIES = 5_000
"""Number of random ports to try before giving up."""
RANGE_PATH = "/proc/sys/net/ipv4/ip_local_port_range"
_LAST = 65_000
_random = SystemRandom()


class PortRangeError(RocketbedError):
    """`ROCKETBED_PORTS` is no range of ports, or has no free ones."""


def is_free(port: int, host: str = HOST) -> bool:
    """True if a server could listen on this port now; a running server does not notice the test."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def node_ports(port: int) -> tuple[int, int, int]:
    """Return the ports of a node with this `listenPort`: the port two below, it, replication."""
    return port - 2, port, port + 1


def free_port(in_use: Iterable[int] = ()) -> int:
    """Return a port that is free, is not among `in_use`, and will not be given to a connection.

    If nearly all ports are given to connections, the system chooses one. Raises `PortRangeError`.
    """
    avoid = set(in_use)
    allowed_ports = allowed_by_environment()
    allowed = allowed_ports or range(FIRST, connection_ports_begin())
    for _ in range(TRIES):
        if allowed_ports or len(allowed) >= 1000:
            port = _random.choice(allowed)
        else:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                port = int(probe.getsockname()[1])
        if port not in avoid and is_free(port):
            return port
    raise PortRangeError(_no_room(allowed_ports))


def allowed_by_environment() -> range | None:
    """Return the ports that `ROCKETBED_PORTS` allows, `None` without it. Raises
    `PortRangeError`."""
    text = os.environ.get(PORTS_VARIABLE)
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal():
        ports = range(int(first), int(last) + 1)
        if ports.start >= 1024 and ports.stop <= _LAST and len(ports) >= LEAST_PORTS:
            return ports
    raise PortRangeError(
        f"{PORTS_VARIABLE}={text} is no range: give the first and the last port, such as"
        f" 20000-21999, from 1024 to {_LAST - 1} and {LEAST_PORTS} at least"
    )


def connection_ports_begin() -> int:
    """Return the first port that the system may give to an outgoing connection."""
    try:
        return int(Path(RANGE_PATH).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def free_ports(nameservers: int, nodes: int) -> list[int]:
    """Return ports of servers on one address: of each nameserver, then the `listenPort` of each
    node."""
    ports: list[int] = []
    in_use: set[int] = set()
    for number in range(nameservers + nodes):
        ports.append(free_port(in_use) if number < nameservers else free_node_port(in_use))
        in_use.update(node_ports(ports[-1]))
    return ports


def free_node_port(in_use: Iterable[int] = ()) -> int:
    """Return a `listenPort` all of whose ports are free and not among `in_use`."""
    avoid = set(in_use)
    allowed_ports = allowed_by_environment()
    for _ in range(TRIES):
        port = free_port(avoid)
        ports = node_ports(port)
        if allowed_ports and not all(number in allowed_ports for number in ports):
            continue
        if port + 1 == connection_ports_begin():
            continue  # the last port would be given to a connection
        if port < _LAST and avoid.isdisjoint(ports) and all(is_free(number) for number in ports):
            return port
    raise PortRangeError(_no_room(allowed_ports))


def _no_room(allowed_ports: range | None) -> str:
    where = (
        f"of {PORTS_VARIABLE}={allowed_ports[0]}-{allowed_ports[-1]}"
        if allowed_ports
        else f"of {HOST}"
    )
    return f"no free ports were found among those {where}: give more, or end what uses them"
