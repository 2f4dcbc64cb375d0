"""Changes of a broker's tables as records of its log, so that they survive the broker.

In a group with failover the leader puts each changed topic, group and committed offset into the
topic `rmq_sys_rb_meta`, in JSON; its followers apply what is confirmed of it (replication.md 7.3).

An operator's change is answered once it is confirmed; a topic's record precedes the topic's first
message; offsets are written at short intervals. Rows are whole: applying one again changes nothing.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, Final

import orjson
import trio

from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.locks import LASTS_S, QueueLocks
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.request_modes import RequestModes
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.epochs import META_TOPIC
from rocketbed.node.store.errors import CorruptRecord, MessageRejected, PutFailed, StoreError
from rocketbed.node.store.run import Run
from rocketbed.node.store.store import MessageStore
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.bodies import SubscriptionGroupConfig, TopicConfig
from rocketbed.wire.bodies_admin import RequestMode
from rocketbed.wire.encoding.json_dialect import BodyError
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import decode_message
from rocketbed.world.api import World

ROUND_S: Final = 0.2
"""Longest age of committed positions that a failover loses."""
LEARN_AGAIN_S: Final = 1.0
ROWS: Final = 100
"""Most rows of a record."""
QUEUES_A_ROW: Final = 20
"""Number of queues that count as a row more."""
REPLAYED: Final = 1000
"""Records that a start reads again at least: the tables in files may be older than the log."""
REPLAYED_MS: Final = int(2000 * LASTS_S)
"""A start also reads all records that are at most this much older than the newest: a held lock is
announced once a minute."""
KINDS: Final = ("topics", "groups", "offsets", "resets", "locks", "modes", "removed")
"""Kinds of rows."""
OF_QUEUES: Final = ("offsets", "resets", "locks")
"""Kinds whose rows hold changes by queue."""
BEHIND_S: Final = 0.5
"""Time without confirmation after which positions and locks are not answered."""


class TableLog:
    """The log of one node's tables; `run` until cancelled."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        locks: QueueLocks,
        modes: RequestModes,
        *,
        acknowledged: Watermark,
    ) -> None:
        """`acknowledged` rises to the confirmed part of what this node has put into the log."""
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._locks = locks
        self._modes = modes
        self._acknowledged = acknowledged
        self._changed_topics: dict[str, None] = {}
        self._changed_groups: dict[str, None] = {}
        self._changed_modes: dict[str, None] = {}
        self._removed: dict[str, int] = {}
        """Topics whose queues are to be destroyed, each with the end of the log at the request."""
        self._changed_queues = {
            "offsets": offsets.changed,
            "resets": offsets.resets_changed,
            "locks": locks.changed,
        }
        self._changes = (
            *(self._changed_topics, self._changed_groups, self._changed_modes, self._removed),
            *self._changed_queues.values(),
        )
        """Changes that are not in the log yet."""
        self._learned: dict[str, int] = {}
        """Topics whose queues a leader has destroyed, with the end of the log at that time."""
        self._has_deletions = trio.Event()
        self.trouble = ""
        """Reason why queues that have to be destroyed still exist: such a node should not lead."""
        self.is_learning = False
        """True while queues are about to be destroyed: no client may read or write them."""
        self._end = 0
        """End of the last record that was put."""
        self._behind_since = -inf
        """Time at which the oldest record was put, on trio's clock, that may not be confirmed."""
        self._roles = 0
        """Rises whenever this node loses the lead."""
        self.deleted: dict[str, None] = {}
        """Topics that a leader has deleted, as far as is known; without recreated ones."""
        topics.on_change.append(lambda names: self._changed_topics.update(dict.fromkeys(names)))
        topics.before_use = self.put
        topics.settling = groups.settling = modes.settling = self.settling
        groups.on_change.append(lambda name: self._changed_groups.update({name: None}))
        modes.on_change.append(lambda key: self._changed_modes.update({key: None}))
        store.on_arrival.append(self._arrived)

    async def run(self) -> None:
        """Put changes into the log, while this node leads."""
        while True:
            await trio.sleep(ROUND_S)
            self.put()

    async def learn(self) -> None:
        """Destroy queues as the leader did: a recreated topic begins without them."""
        while True:
            await self._has_deletions.wait()
            self._has_deletions = trio.Event()
            # A deletion's record follows it in the log, unless it was cut off.
            end = self._store.max_offset
            self._learned = {name: at for name, at in self._learned.items() if at <= end}
            learned, again_s = dict(self._learned), 0.0
            dispatched = self._store.dispatched.value
            if dispatched < max(learned.values(), default=0):
                again_s = ROUND_S
            try:
                await self._store.removal.learn_deletions(learned)
            except (StoreError, OSError) as exc:
                if not self.trouble:
                    self._world.log.error("tables.deletion_not_learned", error=str(exc))
                self.trouble = f"what a leader has deleted of topics is still here: {exc}"
                again_s = LEARN_AGAIN_S
            else:
                # Above a later cut, another leader's messages may be in their place.
                for name, at in learned.items():
                    if at <= dispatched and self._learned.get(name) == at:
                        del self._learned[name]
                self.trouble = ""
                if not again_s and not self._has_deletions.is_set():
                    self.is_learning = False
            if again_s:
                self._has_deletions.set()
                await trio.sleep(again_s)

    def begin_role(self) -> None:
        """Discard recorded changes: they are another leader's, or in the tables that it sends."""
        self._changed_topics.clear()
        self._changed_groups.clear()
        self._changed_modes.clear()
        self._removed.clear()
        for queues in self._changed_queues.values():
            queues.take()
        self._end = 0
        self._roles += 1

    def put(self) -> None:
        """Put changes into the log; tried again later if that is not possible."""
        if self._config.is_slave:
            self.begin_role()
            return
        if self._store.refusal() is not None:
            return
        waiting = self._rows()
        if self._acknowledged.value >= self._end:
            self._behind_since = trio.current_time()
        unfit: list[dict[str, Any]] = []
        while waiting:
            rows = waiting[0]
            try:
                run = self._record(rows)
                self._store.commit(run)
            except (MessageRejected, PutFailed) as exc:
                # A small segment takes fewer rows at a time.
                halves = _halves(rows) if isinstance(exc, MessageRejected) else None
                if halves is not None:
                    waiting[:1] = halves
                    continue
                self._world.log.error("tables.not_in_log", error=str(exc), rows=_names(rows))
                if isinstance(exc, MessageRejected):
                    unfit.append(waiting.pop(0))  # no caller checked it: `fits`
                    continue
                break
            waiting.pop(0)
            self._end = run.end
        for unsent in (*waiting, *unfit):
            self._restore_changes(unsent)

    def fits(self, kind: str, name: str, row: dict[str, Any]) -> None:
        """Check a row before it enters a table. Raises `ConfigFileError` if it fits into no record,
        so that no other replica would get it."""
        if self._config.is_slave:
            return
        try:
            self._record({kind: {name: row}})
        except MessageRejected as exc:
            raise ConfigFileError(
                f"the row of {name} is too large for the log, in which it comes to the other"
                f" replicas: {exc}"
            ) from exc

    def _record(self, rows: dict[str, Any]) -> Run:
        """Return a record of rows, to be committed. Raises `MessageRejected`."""
        run = self._store.begin()
        run.add(
            META_TOPIC,
            0,
            orjson.dumps(rows, option=orjson.OPT_NON_STR_KEYS),
            b"",
            flag=0,
            sys_flag=0,
            born_ms=run.now_ms,
            born_host=self._store.store_host_bytes,
            is_limited=False,
        )
        return run

    @property
    def is_behind(self) -> bool:
        """True if the last record waits too long for its confirmation: more may be lost."""
        if self._acknowledged.value >= self._end:
            return False
        return trio.current_time() > self._behind_since + BEHIND_S

    def settling(self) -> Callable[[], Awaitable[None]]:
        """Return a function that waits until changes from now on are confirmed. It raises
        `ConfigFileError` if this node does not lead all the while; not if it does not lead now."""
        if self._config.is_slave:
            return trio.lowlevel.checkpoint
        return partial(self._settle, self._roles)

    async def _settle(self, roles: int) -> None:
        self.put()
        if roles == self._roles and not any(self._changes):
            with trio.move_on_after(self._config.slave_timeout_ms / 1000):
                await self._acknowledged.wait_for(self._end)
                if roles == self._roles:
                    return
        refusal = self._store.refusal()
        raise ConfigFileError(
            "the change is not confirmed by enough replicas in time (slaveTimeout): it may be made"
            f" or not{f' ({refusal[1]})' if refusal else ''}; ask again, and who leads then"
        )

    def removal(self, topic: str) -> Callable[[], Awaitable[None]]:
        """Order all replicas to destroy the queues of a topic, up to the present end of the log,
        once that is confirmed. The returned function waits until it is done here; raises as
        `settling`, `StoreError`."""
        at = self._removed[topic] = self._store.max_offset
        return partial(self._remove, topic, at, self._store.removal.offsets(topic))

    def give_up_removal(self, topic: str) -> bool:
        """True if no replica will destroy them: the order was not put into the log yet."""
        return not self._config.is_slave and self._removed.pop(topic, None) is not None

    async def _remove(self, topic: str, at: int, offsets: dict[tuple[str, int], int]) -> None:
        roles, removal = self._roles, self._store.removal
        await self._settle(roles)
        with trio.move_on_after(self._config.slave_timeout_ms / 1000):
            await self._store.dispatched.wait_for(at)
        if self._store.dispatched.value < at:
            raise ConfigFileError(
                f"the deletion of {topic} counts, and its messages are still here, since queues"
                f" are written too slowly ({self._store.trouble() or 'the disk is busy'}): they"
                " go as soon as that is over"
            )
        await removal.learn_deletions({topic: at})
        if roles == self._roles and removal.offsets(topic) == offsets:
            removal.begin_anew(topic)

    def _rows(self) -> list[dict[str, Any]]:
        """Return the changes since the last call, as bodies of records."""
        rows: list[tuple[str, str, Any]] = []
        for name in self._changed_topics:
            topic = self._topics.get(name)
            rows.append(("topics", name, topic.to_json() if topic else None))
        for name in self._changed_groups:
            group = self._groups.get(name)
            rows.append(("groups", name, group.to_json() if group else None))
        for kind, changes in (
            ("offsets", self._offsets.take_changes()),
            ("resets", self._offsets.take_resets()),
            ("locks", self._locks.take_changes()),
        ):
            rows += [(kind, key, queues) for key, queues in changes.items()]
        rows += [("modes", key, self._modes.row(key)) for key in self._changed_modes]
        rows += [("removed", name, at) for name, at in self._removed.items()]
        for names in (self._changed_topics, self._changed_groups, self._changed_modes):
            names.clear()
        self._removed.clear()
        bodies: list[dict[str, Any]] = []
        room = 0
        for kind, name, row in rows:
            if room <= 0:
                bodies.append({})
                room = ROWS
            bodies[-1].setdefault(kind, {})[name] = row
            room -= 1 + len(row) // QUEUES_A_ROW if kind in self._changed_queues else 1
        return bodies

    def _restore_changes(self, rows: dict[str, Any]) -> None:
        self._changed_topics.update(dict.fromkeys(rows.get("topics", ())))
        self._changed_groups.update(dict.fromkeys(rows.get("groups", ())))
        self._changed_modes.update(dict.fromkeys(rows.get("modes", ())))
        self._removed.update(rows.get("removed", {}))
        for kind, queues_of_kind in self._changed_queues.items():
            for key, queues in rows.get(kind, {}).items():
                queues_of_kind.note(key, *queues)

    # --- records of another leader

    def _arrived(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.topic == META_TOPIC:
                # A leader's tables have its own rows; the destruction of queues waits for this.
                only = ("removed",) if not self._config.is_slave else KINDS
                self.take_over(entry.physical_offset, entry.size, only)

    def replay(self) -> None:
        """Apply the newest records again, which a start has found in the log."""
        first, end = self._store.queue_min(META_TOPIC, 0), self._store.queue_max(META_TOPIC, 0)
        at = max(first, end - REPLAYED)
        newest_ms = self._stored_ms(end - 1) if end > first else 0
        while at > first and self._stored_ms(at) > newest_ms - REPLAYED_MS:
            at = max(first, at - REPLAYED)
        while at < end and (units := self._store.units(META_TOPIC, 0, at, end - at)):
            for physical, size, _ in units:
                self.take_over(physical, size)
            at += len(units)

    def _stored_ms(self, at: int) -> int:
        """Return the store time of a record; 0 for an unreadable one."""
        try:
            physical, size, _ = self._store.units(META_TOPIC, 0, at, 1)[0]
            return decode_message(self._store.log.read(physical, size)).store_timestamp
        except (CorruptRecord, OSError, RemoteProtocolError):
            return 0

    def take_over(self, physical: int, size: int, kinds: tuple[str, ...] = KINDS) -> None:
        """Apply a record to the tables; an unreadable one is logged and skipped."""
        try:
            body = orjson.loads(decode_message(self._store.log.read(physical, size)).body)
            rows = {kind: body.get(kind, {}) for kind in kinds}
            topics = {
                name: None if row is None else TopicConfig.from_json(row)
                for name, row in rows.get("topics", {}).items()
            }
            groups = {
                name: None if row is None else SubscriptionGroupConfig.from_json(row)
                for name, row in rows.get("groups", {}).items()
            }
            offsets, resets = (
                {
                    key: {int(queue): int(offset) for queue, offset in queues.items()}
                    for key, queues in rows.get(kind, {}).items()
                }
                for kind in ("offsets", "resets")
            )
            locks = {
                key: {int(queue): str(client) for queue, client in queues.items()}
                for key, queues in rows.get("locks", {}).items()
            }
            modes = [RequestMode.from_json(row) for row in rows.get("modes", {}).values()]
            removed = {str(name): int(at) for name, at in rows.get("removed", {}).items()}
        except (
            *(AttributeError, TypeError, ValueError),
            *(BodyError, CorruptRecord, OSError, RemoteProtocolError),
        ) as exc:
            self._world.log.error("tables.record_unreadable", offset=physical, error=str(exc))
            return
        for name, at in removed.items():
            self._learned[name] = max(at, self._learned.get(name, -1))
            self._has_deletions.set()
            # Not needed for a leader's own record: its topic no longer exists.
            self.is_learning |= kinds is KINDS
        for name, row in topics.items():
            self.deleted.pop(name, None)
            if row is None:
                self.deleted[name] = None
        if topics:
            self._topics.apply(topics)
        if groups:
            self._groups.apply(groups)
        if offsets:
            self._offsets.apply(offsets)
        self._offsets.apply_resets(resets)
        self._locks.apply(locks)
        for entry in modes:
            self._modes.put(entry)


def _names(rows: dict[str, Any]) -> list[str]:
    return [f"{kind} {name}" for kind, of_kind in rows.items() for name in of_kind][:ROWS]


def _halves(rows: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the same rows in two records, splitting the queues of one row if need be; None if
    there is a single item."""
    items = [(kind, name, row) for kind, some in rows.items() for name, row in some.items()]
    if len(items) == 1:
        kind, name, row = items[0]
        if kind not in OF_QUEUES or len(row) < 2:
            return None
        items = [(kind, name, {queue: at}) for queue, at in row.items()]
    middle = len(items) // 2
    bodies: list[dict[str, Any]] = []
    for part in (items[:middle], items[middle:]):
        bodies.append({})
        for kind, name, row in part:
            some = bodies[-1].setdefault(kind, {})
            some[name] = some.get(name, {}) | row if kind in OF_QUEUES else row
    return bodies
