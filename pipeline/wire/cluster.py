"""Which queues of a live cluster are asked for, and where they begin and end now."""

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
"""So old may a list of all topics be: a stream asks many times a second."""
LEFT_OUT: Final = 100
"""Messages of a queue; fewer may be on their way to a replica, if they are not most of it."""
LONGEST: Final = "the data source's readUncommitted=true reads what the longest has"
"""Advice; jobs have no such option."""
HELD_UP_S: Final = 10.0
"""A replica that is well has got something more within this time."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The cluster's queues at one moment, by `queue_name`."""

    queues: Mapping[str, MessageQueue]
    bounds: Mapping[str, QueueBounds]


def left_out(seen: QueueSnapshot) -> str:
    """What is not read, as a member that answered does not have it, if it is more than may be on
    its way to it; else nothing."""
    behind = {
        name: count
        for name, count in _lacking(seen).items()
        if count >= LEFT_OUT or 2 * seen.bounds[name].end < seen.bounds[name].longest
    }
    what = "and are not read: a replica is behind, or is another one's"
    return f"{_count(behind)}, {what}" if behind else ""


def unanswered(seen: QueueSnapshot) -> str:
    """Which members on a route did not say where their queues end, as nobody knows what they have;
    or nothing."""
    return _unread(_silent(seen))


def _silent(seen: QueueSnapshot) -> list[str]:
    """Members that did not answer: where, and of which broker."""
    found = [
        f"{address} of {name.partition('|')[0]}"
        for name, bounds in seen.bounds.items()
        for address in bounds.silent
    ]
    return list(dict.fromkeys(found))


def _unread(silent: Sequence[str]) -> str:
    what = "what only it has is" if len(silent) == 1 else "what only they have is"
    return f"no answer from {', '.join(silent)}: {what} not read" if silent else ""


def _lacking(seen: QueueSnapshot) -> dict[str, int]:
    """Messages of queues that not every member has that answered."""
    bounds = seen.bounds.items()
    return {name: one.longest - one.end for name, one in bounds if one.longest > one.end}


def _count(lacking: Mapping[str, int]) -> str:
    first = next(iter(lacking))
    count = f"{sum(lacking.values())} messages of {len(lacking)} queues, {first} the first"
    return f"{count}, are not at every member that answered"


class Cluster:
    """Looks at the topics that the options name, that match their pattern, or at all."""

    def __init__(self, options: Options, *, is_batch: bool = False) -> None:
        """`is_batch`: what is not there now is never read, so a topic that is named has to be."""
        self.options = options
        self._needs_all = is_batch or options.fail_on_data_loss
        self._topics: list[str] = []
        """What was discovered, if it was."""
        self._discovered_at = -DISCOVERED_S
        self._brokers: frozenset[str] = frozenset()
        """Those that are read, if not all are; one that is away for a while stays."""
        self._brokers_at = -DISCOVERED_S
        self._gone: dict[str, None] = {}
        """Topics that were waited for in vain: they are looked for, and not waited for again."""
        self._lacking_since: dict[str, tuple[int, float]] = {}
        """Where queues end that a member has more of, and since when; infinity once it was told."""
        self._silent: list[str] = []
        """Members that did not answer the last look; they were told."""

    def end(self, bounds: QueueBounds) -> int:
        """Up to where a queue is read."""
        return bounds.longest if self.options.read_uncommitted else bounds.end

    def tell_unanswered(self, seen: QueueSnapshot) -> None:
        """Warn of members that do not answer, once until they do."""
        silent = _silent(seen)
        if told := _unread([one for one in silent if one not in self._silent]):
            LOG.warning("wire.unanswered %s", told)
        self._silent = silent

    def tell_left_out(self, seen: QueueSnapshot) -> None:
        """Warn of what is not read."""
        told = "" if self.options.read_uncommitted else left_out(seen)
        if told:
            LOG.warning("wire.behind %s; %s", told, LONGEST)

    def tell_held_up(self, seen: QueueSnapshot, at: Mapping[str, int]) -> None:
        """Warn of queues of which a member does not get what another one has, once until it does: a
        stream waits for it, but for what is before `at`."""
        now_s, since = time.monotonic(), {}
        stuck: dict[str, int] = {}
        for name in _lacking(seen):
            bounds = seen.bounds[name]
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
        """All queues now; `fresh`: with topics that were made a moment ago.

        Raises `WireError`, `TopicGone`; `StreamError` for a topic that the brokers that the options
        name do not have.
        """
        found: dict[str, MessageQueue] = {}
        brokers = await self._asked_brokers(log)

        async def ask(topic: str) -> None:
            queues = await self._queues(log, topic)
            own = _at(brokers, queues)
            if queues and not own and self.options.topics is not None:
                await self._named_brokers(log)  # one of them may be away for a while
                log.distrust(topic)
                queues = await self._queues(log, topic)
                own = _at(brokers, queues)
            if queues and not own and self.options.topics is not None:
                there = ", ".join(sorted({queue.broker_name for queue in queues}))
                raise StreamError(
                    f"topic {topic} has no queue at {', '.join(sorted(brokers or ()))}; it is at"
                    f" {there}: leave the topic or options brokers and clusters out"
                )
            for queue in own:
                found[queue_name(queue.broker_name, topic, queue.queue_id)] = queue

        await together(ask, await self._asked(log, fresh=fresh))
        queues = dict(sorted(found.items()))
        bounds = await log.bounds_of(queues.values())
        return QueueSnapshot(queues, {name: bounds[queue] for name, queue in queues.items()})

    async def look_until(self, log: WireLog, ends: Mapping[str, int]) -> QueueSnapshot:
        """All queues, once they are as long as that; or as they are when the limit is over: a
        broker that has just started may not know all of its queues yet."""
        deadline = trio.current_time() + self.options.limit_s
        while True:
            seen = await self.look(log)
            short = [
                name
                for name, end in ends.items()
                if name not in seen.bounds or seen.bounds[name].longest < end
            ]
            if not short or trio.current_time() >= deadline:
                return seen
            for name in short:
                log.distrust(topic_of(name))
            await trio.sleep(LOOK_S)

    def places(self, given: str | StreamOffset, seen: QueueSnapshot, option: str) -> dict[str, int]:
        """Where queues are, as the value of an option says. Raises `StreamError` for a queue that
        is not there."""
        if given == EARLIEST:
            return {name: bounds.first for name, bounds in seen.bounds.items()}
        if given == LATEST:
            return {name: self.end(bounds) for name, bounds in seen.bounds.items()}
        assert isinstance(given, StreamOffset)
        if strange := sorted(given.marks.keys() - seen.bounds.keys()):
            raise StreamError(
                f"option {option} names {strange[0]}, which is no queue of these topics; there are"
                f" {', '.join(list(seen.bounds)[:10]) or 'none'}"
            )
        found = {}
        for name, mark in given.marks.items():
            bounds = seen.bounds[name]
            found[name] = {NEWEST: self.end(bounds), OLDEST: bounds.first}.get(mark.at, mark.at)
        return found

    async def since(self, log: WireLog, seen: QueueSnapshot, time_ms: int) -> dict[str, int]:
        """Where each queue's first message stored at or after a time is, or will be."""
        found: dict[str, int] = {}

        async def ask(name: str) -> None:
            bounds = seen.bounds[name]
            found[name] = await place_of(
                log, seen.queues[name], bounds.first, self.end(bounds), time_ms
            )

        await together(ask, seen.queues)
        return found

    async def _asked_brokers(self, log: WireLog) -> frozenset[str] | None:
        """Brokers whose queues are read; None: all."""
        if not (self.options.brokers or self.options.clusters):
            return None
        now = time.monotonic()
        is_old = now - self._brokers_at >= DISCOVERED_S
        if not self._brokers or (self.options.clusters and is_old):
            self._brokers |= await self._named_brokers(log)
            self._brokers_at = now
        return self._brokers

    async def _named_brokers(self, log: WireLog) -> frozenset[str]:
        """Brokers that the options name, once they are registered. Raises `WireError`."""
        return await log.brokers(self.options.brokers or (), self.options.clusters or ())

    async def _asked(self, log: WireLog, *, fresh: bool) -> list[str]:
        if self.options.topics is not None:
            return sorted(self.options.topics)
        now = time.monotonic()
        if fresh or now - self._discovered_at >= DISCOVERED_S:
            self._topics = await log.topics(self.options.topics_pattern)
            self._discovered_at = now
        return self._topics

    async def _queues(self, log: WireLog, topic: str) -> tuple[MessageQueue, ...]:
        if self.options.topics is None or topic in self._gone:
            found = await log.queues_now(topic)
            if found:
                self._gone.pop(topic, None)
            return found
        try:
            return await log.queues(topic)
        except TopicGone as exc:
            if self._needs_all:
                raise
            LOG.warning("wire.topic_gone %s: it is read again when it is there", exc)
            self._gone[topic] = None
            return ()


def _at(brokers: frozenset[str] | None, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return [one for one in queues if brokers is None or one.broker_name in brokers]
