"""Ports on loopback that nobody uses a moment before they are used.

They are taken from below the range from which the system gives ports to connections. A port of
that range would be free only while its server runs: when the server is killed, any connection that
is opened in the meantime may get it, and the server cannot come back.

Between programs that look for ports at the same time that does not help: one may be given a port
of another's server while that is down. With `ROCKETBED_PORTS=20000-21999` in the environment each
has a range of its own.
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
"""The defaults of RocketMQ."""
FIRST = 10_000
"""Below are the ports of well-known services."""
PORTS_VARIABLE = "ROCKETBED_PORTS"
"""Variable of the environment: the only ports that may be taken, first and last."""
LEAST_PORTS = 100
"""Fewer are no range: servers are looked for at random."""
TRIES = 5_000
"""Drawn ports, of which one has to be free."""
RANGE_PATH = "/proc/sys/net/ipv4/ip_local_port_range"
_LAST = 65_000
_random = SystemRandom()


class PortRangeError(RocketbedError):
    """`ROCKETBED_PORTS` is no range of ports, or has no free ones."""


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on this port now; one that does not notice the question."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def node_ports(port: int) -> tuple[int, int, int]:
    """What a node with this `listenPort` listens on: the port two below, it, replication."""
    return port - 2, port, port + 1


def free_port(taken: Iterable[int] = ()) -> int:
    """A port that is free, is not among `taken`, and will not be given to a connection.

    Where nearly all ports go to connections, one chosen by the system. Raises `PortRangeError`.
    """
    avoid = set(taken)
    given = ports_given()
    allowed = given or range(FIRST, connection_ports_begin())
    for _ in range(TRIES):
        if given or len(allowed) >= 1000:
            port = _random.choice(allowed)
        else:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                port = int(probe.getsockname()[1])
        if port not in avoid and is_free(port):
            return port
    raise PortRangeError(_no_room(given))


def ports_given() -> range | None:
    """The ports that `ROCKETBED_PORTS` allows, `None` without it. Raises `PortRangeError`."""
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
    """First port that the system may give to an outgoing connection."""
    try:
        return int(Path(RANGE_PATH).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def free_ports(nameservers: int, nodes: int) -> list[int]:
    """Ports of servers on one address: of each nameserver, then the `listenPort` of each node."""
    found: list[int] = []
    taken: set[int] = set()
    for number in range(nameservers + nodes):
        found.append(free_port(taken) if number < nameservers else free_node_port(taken))
        taken.update(node_ports(found[-1]))
    return found


def free_node_port(taken: Iterable[int] = ()) -> int:
    """A `listenPort` all of whose ports are free and none of which is among `taken`."""
    avoid = set(taken)
    given = ports_given()
    for _ in range(TRIES):
        port = free_port(avoid)
        ports = node_ports(port)
        if given and not all(one in given for one in ports):
            continue
        if port + 1 == connection_ports_begin():
            continue  # the last one would be a connection's
        if port < _LAST and avoid.isdisjoint(ports) and all(is_free(one) for one in ports):
            return port
    raise PortRangeError(_no_room(given))


def _no_room(given: range | None) -> str:
    where = f"of {PORTS_VARIABLE}={given[0]}-{given[-1]}" if given else f"of {HOST}"
    return f"no free ports were found among those {where}: give more, or end what uses them"
