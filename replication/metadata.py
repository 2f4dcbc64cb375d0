"""A slave's copies of its master's tables: topics, groups, offsets (replication.md 2, wire.md 7.1).

RocketMQ's slave asks every 60 s, the first time a minute after its start, deletes every entry and
adds them again. Ours asks as soon as it follows a master and every few seconds from then on, and
replaces a table in one step, only if it differs: by version and contents, but offsets by contents
alone, as their version changes with every save. A real slave sends code 21 to the port two below
the master's; a master that does not answer on one port is asked on the other.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.replication.errors import MetadataRefused
from rocketbed.wire.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import request
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import Address, World

PERIOD_S: Final = 3.0
"""Pause between two copies (`rbMetadataSync`)."""
FALLBACK_PORT_DISTANCE: Final = 2
"""A RocketMQ broker also serves on its port minus two (the "VIP" port)."""

B = TypeVar("B")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Copied:
    """A master's answers besides its tables."""

    master: Address
    texts: dict[str, bytes | None]
    """Contents of its files, by name."""
    deletions: dict[str, int]


class SyncedTable(Protocol[B]):
    """A table of a slave's broker."""

    version: DataVersion
    """Version of the latest copy."""

    def body(self) -> B: ...

    def replace_all(self, table: B) -> None:
        """Replace the table with a master's, including its version."""
        ...


class MetadataTarget(Protocol):
    """Destination of a slave's copies. A None is not copied."""

    @property
    def topics(self) -> SyncedTable[TopicConfigTable]:
        """Topic configuration (code 21)."""
        ...

    @property
    def groups(self) -> SyncedTable[SubscriptionGroupTable]:
        """Subscription groups (201)."""
        ...

    @property
    def offsets(self) -> SyncedTable[ConsumerOffsetTable]:
        """Consumer offsets (43)."""
        ...

    async def save_text(self, name: str, text: bytes) -> None:
        """Save a file of the master unchanged: `delayOffset.json` (45), `messageRequestMode.json`
        (402). Called only if it differs from the previous one."""
        ...

    async def match_types(self) -> None:
        """Rebuild queues of copied topics that have another type. Raises as `learn_deletions`."""
        ...

    async def learn_deletions(self, deletions: dict[str, int], is_due: Callable[[], bool]) -> None:
        """Apply deletions of the master: topics, each with the end of the log at that moment; only
        as long as `is_due`, since later records may be another master's. Raises `RocketbedError`,
        `OSError`; called again at the next round, done or not."""
        ...


class MetadataSync:
    """Copies until cancelled. `set_master` sets the source; None for none."""

    def __init__(self, world: World, target: MetadataTarget, *, period_s: float = PERIOD_S) -> None:
        self._world = world
        self._target = target
        self._period_s = period_s
        self.may_copy: Callable[[], bool] = lambda: True
        """True if the master may be copied from: not while its log is refused."""
        self._texts: dict[str, bytes] = {}
        self._poked = trio.Event()
        self._unknown: dict[int, None] = {}
        self.master: Address | None = None
        """Remoting address of the master."""
        self.rounds = 0
        """Successful copies."""
        self.last_error = ""
        """Reason of the last failure, empty after a success."""
        self._is_taking_over = False
        self._source: Address | None = None
        """Source of this round."""

    def set_master(self, address: Address | None) -> None:
        """Copy from the master at this remoting address from now on."""
        if address != self.master:
            self.master = address
            self._unknown.clear()
            self.poke()

    def poke(self) -> None:
        """Copy now rather than at the next period; used when a slave begins to follow."""
        self._poked.set()

    async def run(self) -> None:
        """Copy when poked and every period."""
        async with trio.open_nursery() as nursery:
            while True:
                self._poked = trio.Event()
                source = self._source = self.master
                if source is not None and self.may_copy():
                    copied = await self._try(partial(self._copy, source))
                    # On a slow disk, files and rebuilt queues may take longer than tables may be
                    # old.
                    if copied is not None and self._is_due() and not self._is_taking_over:
                        self._is_taking_over = True
                        nursery.start_soon(self._take_over, copied)
                with trio.move_on_after(self._period_s):
                    await self._poked.wait()

    def _is_due(self) -> bool:
        """True if a copy is still to be applied: in a group with failover its source may have lost
        the lead meanwhile, and this node may lead itself."""
        return self._source == self.master and self.may_copy()

    async def _take_over(self, copied: _Copied) -> None:
        try:
            if await self._try(partial(self._take_over_once, copied)):
                self.last_error = ""
                self.rounds += 1
        finally:
            self._is_taking_over = False

    async def _try(self, part: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of a part of a copy; None if it failed, which is logged."""
        try:
            return await part()
        except (RocketbedError, OSError) as exc:
            if not self._is_due():
                return None
            if str(exc) != self.last_error:
                self._world.log.warning(
                    "replication.metadata_failed",
                    master="" if self.master is None else f"{self.master[0]}:{self.master[1]}",
                    reason=str(exc),
                )
            self.last_error = str(exc)
            return None

    async def _copy(self, master: Address) -> _Copied:
        """Replace the tables, and fetch the files. Raises `RemotingError`, `ProtocolError`,
        `MetadataRefused`, and the target's errors.

        Tables that were replaced before the error stay.
        """
        host, port = master
        fallback = (host, port - FALLBACK_PORT_DISTANCE)
        try:
            return await self._copy_from(master, master)
        except (RemotingError, MetadataRefused):
            if fallback[1] <= 0:
                raise
            return await self._copy_from(master, fallback)

    async def _copy_from(self, master: Address, address: Address) -> _Copied:
        connection = await dial(self._world, address)
        copied: _Copied | RocketbedError | OSError
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            try:
                copied = await self._copy_all(master, connection)
            except (RocketbedError, OSError) as exc:
                copied = exc  # raised outside, since a nursery would wrap it in a group
            connection.close()
        if not isinstance(copied, _Copied):
            raise copied
        return copied

    async def _copy_all(self, master: Address, connection: Connection) -> _Copied:
        target = self._target
        body = await self._ask(connection, RequestCode.GET_ALL_TOPIC_CONFIG)
        if body is None:
            raise MetadataRefused(
                f"{connection.remote_text} does not hand out its topics (code 21)"
            )
        topics = TopicConfigTable.decode(body)
        if (topics.data_version, topics.topic_config_table) != (
            target.topics.version,
            target.topics.body().topic_config_table,
        ):
            self._replace("topics", target.topics, topics)
        body = await self._ask(connection, RequestCode.GET_ALL_CONSUMER_OFFSET)
        if body is not None:
            offsets = ConsumerOffsetTable.decode(body)
            if offsets.offset_table != target.offsets.body().offset_table:
                self._replace("offsets", target.offsets, offsets)
        delays = await self._ask(connection, RequestCode.GET_ALL_DELAY_OFFSET)
        body = await self._ask(connection, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        if body is not None:
            groups = SubscriptionGroupTable.decode(body)
            held = target.groups.body()
            if (
                groups.data_version,
                groups.subscription_group_table,
                groups.forbidden_table,
            ) != (target.groups.version, held.subscription_group_table, held.forbidden_table):
                self._replace("groups", target.groups, groups)
        modes = await self._ask(connection, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        texts = {"delayOffset.json": delays, "messageRequestMode.json": modes}
        return _Copied(master, texts, topics.rb_deleted or {})

    async def _take_over_once(self, copied: _Copied) -> bool:
        target = self._target
        for name, text in copied.texts.items():
            if text and self._texts.get(name) != text:
                await target.save_text(name, text)
                self._texts[name] = text
        await target.match_types()
        if copied.deletions:
            await target.learn_deletions(
                copied.deletions, lambda: copied.master == self.master and self.may_copy()
            )
        return True

    async def _ask(self, connection: Connection, code: int) -> bytes | None:
        """Return the body of an answer; None if the master does not support the request (codes
        differ by release), which is logged once."""
        response = await connection.request(request(code))
        if response.code == ResponseCode.SUCCESS:
            return response.body
        if code not in self._unknown:
            self._unknown[code] = None
            self._world.log.info(
                "replication.metadata_refused",
                code=int(code),
                answer=response.code,
                remark=response.remark,
            )
        return None

    def _replace(self, name: str, table: SyncedTable[B], theirs: B) -> None:
        if not self._is_due():
            raise MetadataRefused(f"the {name} of a master that is none any more")
        table.replace_all(theirs)
        self._world.log.debug("replication.metadata_copied", table=name)
