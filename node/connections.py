"""Limits on the connections of each port of a node, so that its store never lacks a descriptor."""

from typing import Final, NamedTuple

from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.files import store_files
from rocketbed.world.api import World

_RESERVE: Final = 32
"""Descriptors for the ports, the log, tables being written, and our own outgoing connections."""
_REPLICATION_MAX: Final = 256
FEW: Final = 64
"""Clients that a node should have room for: a few programs with some connections each."""


class ConnectionLimits(NamedTuple):
    clients: int
    """The main port."""
    fast: int
    """The port two below it, for the few clients that use it."""
    replication: int


def connection_limits(world: World, config: NodeConfig) -> ConnectionLimits:
    """Return the limits of `rbMaxConnections` and `rbMaxHaConnections`, else a share of the
    process's descriptors."""
    free = max(world.process.descriptors - store_files(world.process.descriptors) - _RESERVE, 8)
    replication = config.ha_connections_max or min(_REPLICATION_MAX, free // 4)
    clients = config.connections_max or (free - replication) * 3 // 4
    return ConnectionLimits(clients, max(clients // 4, 2), replication)


def warn_of_few(world: World, config: NodeConfig) -> None:
    """Warn at the start that further clients will have their connections closed at once."""
    limits = connection_limits(world, config)
    if not config.connections_max and limits.clients < FEW:
        world.log.warning(
            "node.few_connections",
            clients=limits.clients,
            descriptors=world.process.descriptors,
            advice="further clients are refused: raise the limit of open files (ulimit -n)",
        )
