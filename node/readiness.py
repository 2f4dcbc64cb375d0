"""Readiness of a node for clients, in a sentence, for `rocketbed health`.

It uses only what the node knows itself, without a wait, and one `statvfs`, since the question comes
every few seconds and must not take a busy node's time or wait for its disk.
"""

from collections.abc import Callable

from rocketbed.node.broker.registration import Registration
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.replication import Replication
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.replication.master import Master
from rocketbed.replication.slave import Slave
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.world.api import World


class Readiness:
    """Answers `RB_READINESS`."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        replication: Replication,
        registration: Registration,
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._replication = replication
        self._registered = registration.registered
        self.failover_trouble: Callable[[], str] | None = None
        """Returns why a replica of a group with failover neither leads nor follows."""

    def handle(self, command: Command, connection: Connection) -> Command:
        """Return success, perhaps with advice for the operator; else the reason."""
        if reason := self.reason():
            return answer(command, ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        return answer(command, remark=self._damage())

    def reason(self) -> str:
        """Return why clients cannot use this node; empty if they can."""
        return self._disk() or self._copies() or self._routes()

    def _disk(self) -> str:
        """Return why nothing can be stored; empty if it can."""
        if trouble := self._store.trouble() or self._store.lack_of_room():
            return trouble
        root = self._config.store.root
        return f"the disk of {root} is read-only" if self._world.disk.usage(root).read_only else ""

    def _copies(self) -> str:
        """Return why a master cannot acknowledge, or a slave gets no data from its master."""
        if self.failover_trouble is not None:
            return self.failover_trouble()
        slave = self._replication.slave
        if slave is not None:
            return _not_following(slave)
        needed = self._config.in_sync_replicas
        if self._config.broker_role != "SYNC_MASTER" or needed < 2:
            return ""
        return _lacks_copies(self._replication.master, needed)

    def _routes(self) -> str:
        """Return why clients cannot find this node: one nameserver is enough for them."""
        if not self._registered or any(self._registered.values()):
            return ""
        return "registered at no nameserver: " + ";".join(
            f"{host}:{port}" for host, port in self._registered
        )

    def _damage(self) -> str | None:
        """Return the damage that the scrub found, which affects only requests for the damaged
        data."""
        remarks = []
        if ranges := self._store.damaged_ranges:
            remarks.append(f"damage in the log, bytes {ranges}: heal it")
        if index := self._store.scrubber.index_damage:
            remarks.append(f"the index is damaged: {index}; start the node again")
        return "; ".join(remarks) or None


def _not_following(slave: Slave) -> str:
    if slave.state == "following":
        return ""
    if slave.master is None:
        return "it follows no master: none is known"
    reason = slave.refusal if slave.state == "refused" else slave.last_loss
    tail = f": {reason}" if reason else ""
    return f"it follows no master: {slave.state}, {slave.master[0]}:{slave.master[1]}{tail}"


def _lacks_copies(master: Master, needed: int) -> str:
    held = master.runtime_info().in_sync_slave_nums + 1
    return "" if held >= needed else f"{held} of {needed} copies in sync (inSyncReplicas)"
