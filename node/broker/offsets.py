"""Positions of consumer groups in queues: `consumerOffset.json` (wire.md 6.5).

Offsets are saved by a timer, as RocketMQ does: after a crash consumers see some messages again,
never fewer (store.md T21). The first offset in a queue is saved at once: a group that begins at the
end of a queue would begin at a different end after the crash.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import trio

from rocketbed.node.broker.changed_queues import ChangedQueues
from rocketbed.node.broker.config_file import ConfigFile, ConfigFileError, SavedTable
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.wire.bodies import ConsumerOffsetTable, DataVersion
from rocketbed.world.api import World

NOT_STORED = -1
GATHER_S = 0.1
"""Delay of the save after a first offset: a group begins in many queues at a time,"""
_COST_FACTOR = 10
"""or this multiple of the time that a save takes: a table may have a million queues."""
TOLD_S = 30.0
"""Time during which pulls are answered with a reset: longer than a long poll."""
LMQ_PREFIX = "%LMQ%"
"""Prefix of RocketMQ's light queues, which are not queues of the store here."""


@dataclass(slots=True)
class _Reset:
    target: int
    until: float = inf
    """Time at which it ends; counted from the first pull that got it."""


class Offsets:
    """The table: topic and group to queue to next offset."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._config = config
        self._file = ConfigFile(world, config.config_dir, "consumerOffset.json")
        self._saved = SavedTable(world, self._file, self._render)
        self._table: dict[str, dict[int, int]] = {}
        self._resets: dict[tuple[str, str, int], _Reset] = {}
        """Group, topic and queue -> offset to which its pulls are sent until one of them starts
        there; lost with the process, as the table has it."""
        self._pulled: dict[tuple[str, str, int], int] = {}
        """Group, topic and queue -> offset of the latest pull that this process served."""
        self.changed, self.resets_changed = ChangedQueues(), ChangedQueues()
        """By `topic@group`, queues whose offset, or reset, changed."""
        self.version = DataVersion()
        self._is_new = trio.Event()
        """Set when a queue has its first offset."""

    def load(self) -> None:
        """Read the file. Raises `ConfigFileError`."""
        table = self._file.load(ConsumerOffsetTable.from_json) or ConsumerOffsetTable()
        self.replace_all(table, is_new=False)

    async def save(self) -> None:
        """Make every commit durable. Raises `ConfigFileError`."""
        if self._saved.is_dirty:
            self.version = self.version.next(self._world.clock.wall_ms())
        await self._saved.save()

    async def run(self) -> None:
        """Save what changed every `flushConsumerOffsetInterval`, and soon after a first offset,
        until cancelled."""
        gather_s = GATHER_S
        while True:
            with trio.move_on_after(self._config.flush_offsets_ms / 1000):
                await self._is_new.wait()
                await trio.sleep(gather_s)
            self._is_new = trio.Event()
            began = trio.current_time()
            try:
                await self.save()
            except ConfigFileError as exc:
                self._world.log.error("config.save_failed", error=str(exc))
            gather_s = max(GATHER_S, _COST_FACTOR * (trio.current_time() - began))

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to consume, `NOT_STORED` when the group never committed."""
        return self._table.get(f"{topic}@{group}", {}).get(queue_id, NOT_STORED)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset as given, even a lower one. A negative one is ignored, and any while a
        reset is pending."""
        if offset < 0 or (group, topic, queue_id) in self._resets:
            return
        self._store(group, topic, queue_id, offset)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group to another offset: its pulls are sent there (`reset_of`)."""
        self._resets[group, topic, queue_id] = _Reset(offset)
        self.resets_changed.note(f"{topic}@{group}", queue_id)
        self._store(group, topic, queue_id, offset)

    def give_up_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Cancel a reset that may not count: no pull is sent there, now or when this node leads
        again."""
        if self._resets.pop((group, topic, queue_id), None) is not None:
            self.resets_changed.note(f"{topic}@{group}", queue_id)

    def reset_of(self, group: str, topic: str, queue_id: int, requested: int) -> int | None:
        """Return the offset at which a group that pulls from `requested` has to continue; None once
        it does.

        Not only the next pull is sent there: a long poll may be of a client that has given it up.
        No pull is after `TOLD_S`: a program may read where it likes.
        """
        place = group, topic, queue_id
        if not self._resets or (reset := self._resets.get(place)) is None:
            return None
        now = trio.current_time()
        reset.until = min(reset.until, now + TOLD_S)
        if reset.target == requested or now > reset.until:
            del self._resets[place]
            self.resets_changed.note(f"{topic}@{group}", queue_id)
            return None
        return reset.target

    def _store(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._table.setdefault(f"{topic}@{group}", {})
        if queue_id not in queues:
            self._is_new.set()
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._saved.touch()
            self.changed.note(f"{topic}@{group}", queue_id)

    def take_changes(self) -> dict[str, dict[int, int]]:
        """Return by `topic@group` and queue the offsets that changed since the last call, -1 for a
        dropped one; changes are recorded from the first call on."""
        return {
            key: {queue: self._table.get(key, {}).get(queue, NOT_STORED) for queue in queues}
            for key, queues in self.changed.take().items()
        }

    def take_resets(self) -> dict[str, dict[int, int]]:
        """Return the same of resets: the target of a pending one, -1 once it is over."""
        changes: dict[str, dict[int, int]] = {}
        for key, queues in self.resets_changed.take().items():
            topic, _, group = key.rpartition("@")
            resets = {queue: self._resets.get((group, topic, queue)) for queue in queues}
            changes[key] = {
                queue: NOT_STORED if reset is None else reset.target
                for queue, reset in resets.items()
            }
        return changes

    def apply_resets(self, changes: Mapping[str, Mapping[int, int]]) -> None:
        """Apply the result of another broker's `take_resets`."""
        for key, queues in changes.items():
            topic, _, group = key.rpartition("@")
            for queue, target in queues.items():
                if target == NOT_STORED:
                    self._resets.pop((group, topic, queue), None)
                else:
                    self._resets[group, topic, queue] = _Reset(target)

    def apply(self, changes: Mapping[str, Mapping[int, int]]) -> None:
        """Apply the result of another broker's `take_changes`."""
        for key, queues in changes.items():
            table = self._table.setdefault(key, {})
            for queue, offset in queues.items():
                if offset == NOT_STORED:
                    table.pop(queue, None)
                else:
                    table[queue] = offset
            if not table:
                del self._table[key]
        self._saved.touch()

    def pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember the offset of a group's latest pull."""
        self._pulled[group, topic, queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of a group's latest pull; `NOT_STORED` if there was none."""
        return self._pulled.get((group, topic, queue_id), NOT_STORED)

    def bring_down(self, queue_max: Callable[[str, int], int]) -> int:
        """Lower offsets beyond the end of their queue to that end; return their number.

        Messages that a group had consumed were lost then (a power loss, a master that died before
        its slave had them, a cut). New messages get their queue offsets, and the group would never
        see those (T20).
        """
        count = 0
        ends: dict[tuple[str, int], int] = {}  # computed once: there may be hundreds of groups
        for key, queues in self._table.items():
            topic, _, group = key.rpartition("@")
            if topic.startswith(LMQ_PREFIX):
                continue
            for queue_id, offset in queues.items():
                end = ends.get((topic, queue_id))
                if end is None:
                    end = ends[topic, queue_id] = queue_max(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    self.changed.note(key, queue_id)
                    count += 1
                    self._world.log.warning(
                        "offsets.brought_down",
                        group=group,
                        topic=topic,
                        queue=queue_id,
                        offset=offset,
                        end=end,
                    )
        if count:
            self._saved.touch()
        return count

    def delete_group(self, group: str) -> None:
        self._drop(lambda _, name: name == group)

    def delete_topics(self, topics: Collection[str]) -> None:
        """Drop the offsets of all these topics in one pass: there may be a million."""
        self._drop(lambda name, _: name in topics)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets in a topic."""
        parts = (key.rpartition("@") for key in self._table)
        return [group for name, _, group in parts if name == topic]

    def topics_of(self, group: str) -> list[str]:
        """Topics in which a group has offsets."""
        parts = (key.rpartition("@") for key in self._table)
        return [topic for topic, _, name in parts if name == group]

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Queue id to offset."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def totals(self) -> Iterator[tuple[str, int]]:
        """Yield `topic@group` and the sum of its offsets; the table may change meanwhile."""
        for key in list(self._table):
            if (queues := self._table.get(key)) is not None:
                yield key, sum(queues.values())

    def body(self) -> ConsumerOffsetTable:
        """Return the table as 43 carries it."""
        return ConsumerOffsetTable(data_version=self.version, offset_table=self._table)

    def replace_all(self, table: ConsumerOffsetTable, *, is_new: bool = True) -> None:
        """Replace the whole table (with the file's, or a master's by metadata sync)."""
        self._table = {key: dict(queues) for key, queues in table.offset_table.items()}
        self.version = table.data_version
        if is_new:
            self._saved.touch()

    def _drop(self, matches: Any) -> None:
        for key in list(self._table):
            topic, _, group = key.rpartition("@")
            if matches(topic, group):
                self.changed.note(key, *self._table[key])
                del self._table[key]
                self._saved.touch()
        for place in [place for place in self._resets if matches(place[1], place[0])]:
            self.give_up_reset(*place)
        for place in [place for place in self._pulled if matches(place[1], place[0])]:
            del self._pulled[place]

    def _render(self) -> dict[str, Any]:
        # Without `body().to_json()`, which copies each of a million offsets.
        return {"dataVersion": self.version.to_json(), "offsetTable": self._table}
