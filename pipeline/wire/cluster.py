"""Find the queues of a live cluster that a read asks for, and their present bounds."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import (
    EARLIEST,
    LATEST,
    NEWEST,
    OLDEST,
    StreamError,
    StreamOffset,
    queue_name,
    topic_of,
)
from rocketbed.pipeline.wire.log import TopicGone, WireLog
from rocketbed.pipeline.wire.questions import QueueBounds, together
from rocketbed.pipeline.wire.times import place_of
from rocketbed.wire.bodies import MessageQueue

LOG: Final = logging.getLogger("rocketbed.pipeline")
LOOK_S: Final = 0.2
DISCOVERED_S: Final = 5.0
"""Maximum age of a list of all topics: a stream asks many times a second."""
LEFT_OUT: Final = 100
"""Missing messages of a queue from which on a replica counts as lagging. Fewer may be on their way,
unless they are more than half of the queue."""
LONGEST: Final = "the data source's readUncommitted=true reads what the longest has"
"""Advice in warnings; jobs have no such option."""
HELD_UP_S: Final = 10.0
"""A healthy replica makes some progress within this time."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The cluster's queues at one moment, by `queue_name`."""

    queues: Mapping[str, MessageQueue]
    bounds: Mapping[str, QueueBounds]


def left_out(snapshot: QueueSnapshot) -> str:
    """Describe messages that are not read because a member that answered lacks them, if there are
    more than may be on their way to it; else return an empty text."""
    lagging = {
        name: count
        for name, count in _lacking(snapshot).items()
        if count >= LEFT_OUT or 2 * snapshot.bounds[name].end < snapshot.bounds[name].longest
    }
    consequence = "and are not read: a replica is behind, or is another one's"
    return f"{_count(lagging)}, {consequence}" if lagging else ""


def unanswered(snapshot: QueueSnapshot) -> str:
    """Describe the members on a route that did not answer, whose messages are therefore unknown;
    empty if all did."""
    return _unread(_silent(snapshot))


def _silent(snapshot: QueueSnapshot) -> list[str]:
    """Members that did not answer, each as `address of broker`."""
    members = [
        f"{address} of {name.partition('|')[0]}"
        for name, bounds in snapshot.bounds.items()
        for address in bounds.silent
    ]
    return list(dict.fromkeys(members))


def _unread(silent: Sequence[str]) -> str:
    consequence = "what only it has is" if len(silent) == 1 else "what only they have is"
    return f"no answer from {', '.join(silent)}: {consequence} not read" if silent else ""


def _lacking(snapshot: QueueSnapshot) -> dict[str, int]:
    """Number of messages by queue that some member that answered lacks."""
    bounds = snapshot.bounds.items()
    return {name: each.longest - each.end for name, each in bounds if each.longest > each.end}


def _count(lacking: Mapping[str, int]) -> str:
    first = next(iter(lacking))
    count = f"{sum(lacking.values())} messages of {len(lacking)} queues, {first} the first"
    return f"{count}, are not at every member that answered"


class Cluster:
    """Looks up the topics that the options name, those that match their pattern, or all."""

    def __init__(self, options: Options, *, is_batch: bool = False) -> None:
        """`is_batch`: the read looks only once, so a topic that is named must exist now."""
        self.options = options
        self._needs_all = is_batch or options.fail_on_data_loss
        self._topics: list[str] = []
        """Topics at the last discovery, if the options name none."""
        self._discovered_at = -DISCOVERED_S
        self._brokers: frozenset[str] = frozenset()
        """Brokers that are read, if not all are; an unreachable one stays."""
        self._brokers_at = -DISCOVERED_S
        self._missing_topics: dict[str, None] = {}
        """Topics that did not appear within the limit: they are looked up, and not waited for
        again."""
        self._lacking_since: dict[str, tuple[int, float]] = {}
        """End of each queue that is longer at some member, and since when; infinity after a
        warning."""
        self._silent: list[str] = []
        """Members that did not answer the last look; a warning was logged."""

    def end(self, bounds: QueueBounds) -> int:
        """Return the offset up to which a queue is read."""
        return bounds.longest if self.options.read_uncommitted else bounds.end

    def tell_unanswered(self, snapshot: QueueSnapshot) -> None:
        """Warn of members that do not answer, once until they answer again."""
        silent = _silent(snapshot)
        if text := _unread([member for member in silent if member not in self._silent]):
            LOG.warning("wire.unanswered %s", text)
        self._silent = silent

    def tell_left_out(self, snapshot: QueueSnapshot) -> None:
        """Warn of messages that are not read."""
        text = "" if self.options.read_uncommitted else left_out(snapshot)
        if text:
            LOG.warning("wire.behind %s; %s", text, LONGEST)

    def tell_held_up(self, snapshot: QueueSnapshot, at: Mapping[str, int]) -> None:
        """Warn of queues where a member makes no progress towards the longest one, once until it
        does: a stream waits for it, except for messages before `at`."""
        now_s, since = time.monotonic(), {}
        stuck: dict[str, int] = {}
        for name in _lacking(snapshot):
            bounds = snapshot.bounds[name]
            count = bounds.longest - max(bounds.end, at.get(name, 0))
            if count <= 0:
                continue
            end, began_s = self._lacking_since.get(name, (-1, now_s))
            if end != bounds.end:
                began_s = now_s
            elif now_s - began_s >= HELD_UP_S:
                stuck[name], began_s = count, math.inf
            since[name] = bounds.end, began_s
        self._lacking_since = since
        if stuck and not self.options.read_uncommitted:
            LOG.warning(
                "wire.held_up %s, and have not come there in %g s: the stream waits for them; %s",
                _count(stuck),
                HELD_UP_S,
                LONGEST,
            )

    async def look(self, log: WireLog, *, fresh: bool = False) -> QueueSnapshot:
        """Look at all queues now; `fresh`: include topics created a moment ago.

        Raises `WireError`, `TopicGone`; `StreamError` for a topic without queues at the brokers
        that the options name.
        """
        queues_by_name: dict[str, MessageQueue] = {}
        brokers = await self._brokers_to_read(log)

        async def ask(topic: str) -> None:
            queues = await self._queues(log, topic)
            own = _at(brokers, queues)
            if queues and not own and self.options.topics is not None:
                await self._named_brokers(log)  # a named broker may be unreachable for a while
                log.distrust(topic)
                queues = await self._queues(log, topic)
                own = _at(brokers, queues)
            if queues and not own and self.options.topics is not None:
                located = ", ".join(sorted({queue.broker_name for queue in queues}))
                raise StreamError(
                    f"topic {topic} has no queue at {', '.join(sorted(brokers or ()))}; it is at"
                    f" {located}: leave the topic or options brokers and clusters out"
                )
            for queue in own:
                queues_by_name[queue_name(queue.broker_name, topic, queue.queue_id)] = queue

        await together(ask, await self._topics_to_read(log, fresh=fresh))
        queues = dict(sorted(queues_by_name.items()))
        bounds = await log.bounds_of(queues.values())
        return QueueSnapshot(queues, {name: bounds[queue] for name, queue in queues.items()})

    async def look_until(self, log: WireLog, ends: Mapping[str, int]) -> QueueSnapshot:
        """Look until all queues reach these ends or the limit is over: a broker that has just
        started may not know all of its queues yet."""
        deadline = trio.current_time() + self.options.limit_s
        while True:
            snapshot = await self.look(log)
            short = [
                name
                for name, end in ends.items()
                if name not in snapshot.bounds or snapshot.bounds[name].longest < end
            ]
            if not short or trio.current_time() >= deadline:
                return snapshot
            for name in short:
                log.distrust(topic_of(name))
            await trio.sleep(LOOK_S)

    def places(
        self, offset: str | StreamOffset, snapshot: QueueSnapshot, option: str
    ) -> dict[str, int]:
        """Resolve the value of an option to an offset for each queue. Raises `StreamError` for an
        unknown queue."""
        if offset == EARLIEST:
            return {name: bounds.first for name, bounds in snapshot.bounds.items()}
        if offset == LATEST:
            return {name: self.end(bounds) for name, bounds in snapshot.bounds.items()}
        assert isinstance(offset, StreamOffset)
        if unknown := sorted(offset.marks.keys() - snapshot.bounds.keys()):
            raise StreamError(
                f"option {option} names {unknown[0]}, which is no queue of these topics; there are"
                f" {', '.join(list(snapshot.bounds)[:10]) or 'none'}"
            )
        places = {}
        for name, mark in offset.marks.items():
            bounds = snapshot.bounds[name]
            places[name] = {NEWEST: self.end(bounds), OLDEST: bounds.first}.get(mark.at, mark.at)
        return places

    async def since(self, log: WireLog, snapshot: QueueSnapshot, time_ms: int) -> dict[str, int]:
        """Return for each queue the offset of the first message stored at or after a time, or its
        end."""
        places: dict[str, int] = {}

        async def ask(name: str) -> None:
            bounds = snapshot.bounds[name]
            places[name] = await place_of(
                log, snapshot.queues[name], bounds.first, self.end(bounds), time_ms
            )

        await together(ask, snapshot.queues)
        return places

    async def _brokers_to_read(self, log: WireLog) -> frozenset[str] | None:
        """Return the brokers whose queues are read; None: all."""
        if not (self.options.brokers or self.options.clusters):
            return None
        now = time.monotonic()
        is_old = now - self._brokers_at >= DISCOVERED_S
        if not self._brokers or (self.options.clusters and is_old):
            self._brokers |= await self._named_brokers(log)
            self._brokers_at = now
        return self._brokers

    async def _named_brokers(self, log: WireLog) -> frozenset[str]:
        """Wait until the brokers that the options name are registered. Raises `WireError`."""
        return await log.brokers(self.options.brokers or (), self.options.clusters or ())

    async def _topics_to_read(self, log: WireLog, *, fresh: bool) -> list[str]:
        if self.options.topics is not None:
            return sorted(self.options.topics)
        now = time.monotonic()
        if fresh or now - self._discovered_at >= DISCOVERED_S:
            self._topics = await log.topics(self.options.topics_pattern)
            self._discovered_at = now
        return self._topics

    async def _queues(self, log: WireLog, topic: str) -> tuple[MessageQueue, ...]:
        if self.options.topics is None or topic in self._missing_topics:
            queues = await log.queues_now(topic)
            if queues:
                self._missing_topics.pop(topic, None)
            return queues
        try:
            return await log.queues(topic)
        except TopicGone as exc:
            if self._needs_all:
                raise
            LOG.warning("wire.topic_gone %s: it is read again when it is there", exc)
            self._missing_topics[topic] = None
            return ()


def _at(brokers: frozenset[str] | None, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return [queue for queue in queues if brokers is None or queue.broker_name in brokers]
