"""Replication of one node: its log, its roles, and where a slave's copies go (design.md 11).

Every role listens on the replication port, so that a slave may feed another. A slave follows the
address in its configuration (`haMasterAddress`), else that of `set_master`, which comes from a
nameserver.
"""

from collections.abc import Callable
from typing import Any

import trio

from rocketbed.node.broker import request_modes
from rocketbed.node.broker.broker import Tables
from rocketbed.node.broker.config_file import ConfigFile
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.connections import connection_limits
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.errors import StoreError, StoreFailed
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.client import parse_address
from rocketbed.replication.api import WholeRecord
from rocketbed.replication.confirm import AckBoard
from rocketbed.replication.errors import CutRefused
from rocketbed.replication.fresh import LogBounds, LogStart, ask_log_bounds, ask_log_start
from rocketbed.replication.log_view import LogView
from rocketbed.replication.master import Master
from rocketbed.replication.member import Member
from rocketbed.replication.metadata import MetadataSync
from rocketbed.replication.slave import Slave
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.bodies import HaRuntimeInfo
from rocketbed.wire.bodies_admin import RequestModeTable
from rocketbed.wire.encoding.json_dialect import loads
from rocketbed.world.api import Address, World

ODD_S = 0.5
"""Shortest time between two copies of the tables that odd queue offsets cause: a RocketMQ master
reports no deletions, so each message may have one."""

REACH_S = 1.0
"""Longest wait until the log reaches a deletion; if it takes longer, only the part that is already
copied is scanned."""


class StoreCutter:
    """Cuts the store's log (`replication.api.LogCutter`)."""

    def __init__(self, store: MessageStore, on_cut: Callable[[], None], diverged: str) -> None:
        """`on_cut` is called after each cut, before anything is appended; `diverged` is
        `rbDiverged`."""
        word, _, number = diverged.rpartition(":")
        self.cut_at = int(number) if number.isdigit() and not word else -1
        self.promotion = int(number) if number.isdigit() and word else 0
        self._store = store
        self._on_cut = on_cut

    async def last_record(self, offset: int) -> WholeRecord | None:
        """Return the last whole record that ends at or below `offset`."""
        boundary = await self._store.removal.boundary_below(offset)
        return (
            None if boundary is None else WholeRecord(boundary.last.physical_offset, boundary.end)
        )

    async def cut(self, offset: int) -> tuple[str, int]:
        """Save a copy of the log from `offset` on, then cut. Raises `CutRefused`, `StoreFailed`."""
        try:
            backup = await self._store.removal.keep_from(offset)
            await self._store.removal.cut(offset)
        except StoreFailed:
            raise
        except (OSError, StoreError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise CutRefused(
                f"the log is not truncated at {offset}, since the rest cannot be kept: {reason};"
                " make room on the disk"
            ) from exc
        self._on_cut()
        return backup


class CopiedTables:
    """Destination of a slave's copies (`replication.metadata.MetadataTarget`)."""

    def __init__(
        self, world: World, config: NodeConfig, store: MessageStore, tables: Tables
    ) -> None:
        self._world = world
        self._store = store
        self._directory = config.config_dir
        self._tables = tables
        self._deletions: dict[str, int] = {}
        """Deletions learned since the start."""

    @property
    def topics(self) -> Topics:
        return self._tables.topics

    @property
    def groups(self) -> Groups:
        return self._tables.groups

    @property
    def offsets(self) -> Offsets:
        return self._tables.offsets

    async def save_text(self, name: str, text: bytes) -> None:
        """Save one of the master's files. Raises `BodyError`, `ConfigFileError`, `OSError`."""
        if name == request_modes.FILE:
            self._tables.modes.replace_all(RequestModeTable.decode(text))
            await self._tables.modes.save()
            return
        value: dict[str, Any] = loads(text)
        await ConfigFile(self._world, self._directory, name).write(value)

    async def match_types(self) -> None:
        """Rebuild queues whose messages arrived before their topic, if it has another type."""
        await self._store.removal.match_types()

    async def learn_deletions(self, deletions: dict[str, int], is_due: Callable[[], bool]) -> None:
        """Rebuild queues of topics that were deleted and recreated, as the master has them. Raises
        `StoreError`, `OSError`, `ConfigFileError`."""
        if deletions != self._deletions:
            # The master's positions have none of a deleted topic. Ours would come back after a
            # power loss and lead groups past messages sent since.
            await self._tables.offsets.save()
        # While the log is still being copied, rebuilding the queues for the present part, and again
        # for the remainder, would leave the deletion unknown for seconds.
        with trio.move_on_after(REACH_S):
            await self._store.dispatched.wait_for(max(deletions.values()))
        if is_due():
            await self._store.removal.learn_deletions(deletions)
            self._deletions = deletions


class Replication:
    """Service of a node: feeds slaves, and on a slave follows the master."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        tables: Tables,
        *,
        confirmed: Watermark | None = None,
        visible: Watermark | None = None,
    ) -> None:
        """`confirmed` rises to what `inSyncReplicas` copies hold. In a group with failover `shown`
        is the part of the log that slaves of the classic protocol may see."""
        self._world = world
        needed = config.in_sync_replicas if confirmed is not None else 1
        heartbeat_s = config.ha_heartbeat_ms / 1000
        housekeeping_s = config.ha_housekeeping_ms / 1000
        self.master = Master(
            world,
            store.log if visible is None else LogView(store.log, visible),
            AckBoard(needed, confirmed if visible is None else None),
            host=config.bind_address,
            port=config.ha_port,
            fresh="last_file" if config.classic_fresh == "last_file" else "first",
            batch_size=config.ha_batch_bytes,
            gap_max=config.ha_gap_max,
            connections_max=connection_limits(world, config).replication,
            heartbeat_s=heartbeat_s,
            housekeeping_s=housekeeping_s,
        )
        self.slave: Slave | None = None
        """Follows the master; None unless this node is a slave."""
        self.metadata: MetadataSync | None = None
        """Copies the master's tables; None unless this node is a slave."""
        self.member: Member | None = None
        """In a group with failover, serves its replicas and follows its leader."""
        self._fixed: Address | None = None
        self.on_cut: list[Callable[[], None]] = []
        """Called after a slave's log was cut (`rbDiverged=cut`)."""
        if config.is_slave:
            self._watch_topics(store, tables.topics)
            self.metadata = MetadataSync(
                world,
                CopiedTables(world, config, store, tables),
                period_s=config.metadata_sync_ms / 1000,
            )
            self.metadata.may_copy = lambda: self.is_following
        if config.is_slave and self.metadata is not None and not config.replica:
            may_cut = config.diverged != "refuse"
            self.slave = Slave(
                world,
                store.log,
                report_flushed=config.store.sync_flush,
                cutter=StoreCutter(store, self._after_cut, config.diverged) if may_cut else None,
                memory=store,
                heartbeat_s=heartbeat_s,
                housekeeping_s=housekeeping_s,
            )
            self.slave.find_bounds = self._find_bounds
            self.slave.only_masters = not config.ha_master_address
            self.slave.on_following.append(self.metadata.poke)
            if config.classic_fresh != "last_file":
                self.slave.find_start = self._find_start
            if config.ha_master_address:
                self._fixed = parse_address(config.ha_master_address)
                self.set_master(None, None)

    def set_master(self, replication: Address | None, remoting: Address | None) -> None:
        """Follow this master, None if none is known; ignored unless this node is a slave.

        A configured `haMasterAddress` takes precedence over `replication`. Without `remoting`, the
        tables come from the port below the replication port, RocketMQ's usual place.
        """
        if self.slave is None or self.metadata is None:
            return
        address = self._fixed or replication
        self.slave.set_master(address)
        if remoting is None and address is not None:
            remoting = (address[0], address[1] - 1)
        self.metadata.set_master(remoting)

    async def _find_start(self) -> LogStart | None:
        """Return the start of the master's log, asked at its remoting address."""
        if self.metadata is None or self.metadata.master is None:
            return None
        return await ask_log_start(self._world, self.metadata.master)

    async def _find_bounds(self) -> LogBounds | None:
        """Return the bounds of the master's log, asked at its remoting address."""
        if self.metadata is None or self.metadata.master is None:
            return None
        return await ask_log_bounds(self._world, self.metadata.master)

    def _watch_topics(self, store: MessageStore, topics: Topics) -> None:
        """Copy the master's tables at once when a message has an unknown topic, or is not the next
        of its queue, as of a topic that was deleted and recreated.

        Otherwise a slave promoted within the period would have messages that no client may pull.
        """
        unknown_topics: dict[str, None] = {}
        odd, odd_s = 0, -ODD_S

        def on_arrival(entries: list[Entry]) -> None:
            nonlocal odd, odd_s
            if store.odd_records != odd and trio.current_time() >= odd_s + ODD_S:
                odd, odd_s = store.odd_records, trio.current_time()
                if self.metadata is not None:
                    self.metadata.poke()
            for topic in {entry.topic: None for entry in entries}:
                if (
                    topic not in unknown_topics
                    and topics.get(topic) is None
                    and self.metadata is not None
                ):
                    unknown_topics[topic] = None
                    self.metadata.poke()

        store.on_arrival.append(on_arrival)

    def _after_cut(self) -> None:
        self.master.drop_slaves("this log was truncated")
        for callback in self.on_cut:
            callback()

    @property
    def is_following(self) -> bool:
        """True if a master sends us its log."""
        if self.member is not None:
            return self.member.follower is not None and self.member.follower.is_linked
        return self.slave is not None and self.slave.state == "following"

    def runtime_info(self) -> HaRuntimeInfo:
        """Return the answer to 907."""
        info = self.master.runtime_info()
        if self.slave is not None:
            info.master = False
            info.ha_client_runtime_info = self.slave.runtime_info()
        if self.member is not None:
            leader, follower = self.member.leader, self.member.follower
            info.master = leader is not None
            if leader is not None:
                info.in_sync_slave_nums = len(leader.view.entry.in_sync) - 1
            if follower is not None:
                info.ha_client_runtime_info = follower.runtime_info()
        return info

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Raises `ReplicationPortTaken`."""
        async with trio.open_nursery() as nursery:
            if self.member is not None:
                self.master.native = self.member.serve
            await nursery.start(self.master.run)
            if self.slave is not None:
                nursery.start_soon(self.slave.run)
            if self.metadata is not None:
                nursery.start_soon(self.metadata.run)
            task_status.started()
