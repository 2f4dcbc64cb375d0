"""Evidence that the checks examine: record, history, traced log ends, and the stores that were
read.

Rows are handled as columns, and queues have numbers (`keys`), so that passes run over integers.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.deletions import Generations, deletions_of
from rocketbed.chaos.checks.disks import Disks
from rocketbed.chaos.checks.events import as_master, heals, step_of, targets_of
from rocketbed.chaos.checks.keys import OFFSET_BITS, OFFSET_MASK, Queues
from rocketbed.chaos.checks.logs import LogReader, NodeLog
from rocketbed.chaos.checks.passes import Column
from rocketbed.chaos.checks.result import Example, Excuse
from rocketbed.chaos.evidence.history import Event, Function, History, Outcome, Row
from rocketbed.chaos.evidence.node_events import REPAIRED
from rocketbed.chaos.evidence.record import Image, RunRecord
from rocketbed.chaos.evidence.trace import Ends, Trace
from rocketbed.chaos.evidence.workload import tag_crc
from rocketbed.inspect import NotAStore, Settings

SENDS = (Function.SEND, Function.SEND_ONEWAY)
READS = (Function.GOT, Function.DELIVER)
SECOND_NS = 1_000_000_000
OWN = "rocketbed"
"""`Software.name` of our own node."""
SPLIT_AFTER_NS = 10 * SECOND_NS
"""Time for which a second master may still answer after the order to be a slave again."""


@dataclass(slots=True)
class Rows:
    """A selection of history rows, column by column; `positions` are positions in the history."""

    history: History
    positions: Column

    def __len__(self) -> int:
        return len(self.positions)

    def column(self, name: str) -> Column:
        """Return a column by the name of its field in `Row`."""
        whole = passes.column(self.history.columns[name])
        return passes.take(whole, self.positions)

    def row(self, number: int) -> Row:
        """Return the row with this number, counted from 0."""
        return self.history.columns.row(int(self.positions[number]))

    def each(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def at(self, numbers: Any) -> "Rows":
        """Return the rows with these numbers, counted from 0."""
        return Rows(self.history, passes.take(self.positions, numbers))


@dataclass
class Evidence:
    """Everything that the checks of one run examine."""

    record: RunRecord
    history: History
    queues: Queues
    nodes: list[NodeLog]
    """Final stores, by node."""
    images: list[NodeLog] = field(default_factory=list)
    """Stores copied in the middle of the run, by time."""
    trace: Trace | None = None
    """Log ends as the disk layer saw them; None if nothing observed them."""
    acks: Trace | None = None
    """Acknowledgements of slaves; `written` is the acknowledged offset."""
    unread: dict[str, str] = field(default_factory=dict)
    """Reasons why stores could not be read, by name."""

    @cached_property
    def group_names(self) -> list[str]:
        return list(self.record.groups)

    @property
    def logs(self) -> list[NodeLog]:
        """Logs of the final stores and of images."""
        return [*self.nodes, *self.images]

    def finals(self) -> list[NodeLog]:
        """Return the log of each group's last master."""
        leaders = set(self.record.leaders.values())
        return [node for node in self.nodes if node.name in leaders]

    def final(self, group: int) -> NodeLog | None:
        """Return the final log of a group; None if its master's store was not read or it had no
        master."""
        return next((node for node in self.finals() if node.group == group), None)

    def no_final(self) -> str:
        """Return why a final log is missing; empty if none is."""
        for number, name in enumerate(self.group_names):
            leader = self.record.leaders.get(name)
            if leader is None:
                return f"group {name} had no master at the end"
            if self.final(number) is None:
                reason = self.unread.get(leader, "it is not among the stores")
                return f"the directory of {leader}, the last master, was not read: {reason}"
        return "" if self.group_names else "the run has no broker group"

    @cached_property
    def stored(self) -> "Stored":
        return Stored(self.finals())

    def rows(self, functions: Iterable[Function], *outcomes: Outcome) -> Rows:
        """Return the rows of these functions, and of these outcomes if any are named."""
        positions = passes.matching(passes.column(self.history.columns["function"]), functions)
        if outcomes:
            outcome = passes.take(passes.column(self.history.columns["outcome"]), positions)
            positions = passes.take(positions, passes.matching(outcome, outcomes))
        return Rows(self.history, positions)

    @cached_property
    def ends(self) -> dict[int, int]:
        """Offset after the last message, by queue number.

        Where all messages of a queue have expired it is the highest end that was ever seen. In a
        complete log a missing message was lost, so that does not apply.
        """
        ends = self.stored.ends.copy()
        expired = {node.group for node in self.finals() if node.log_min}
        if self.record.reserved_ns is not None:
            for queue, end in self.highest_ends.items():
                if self.queues.names[queue].group in expired:
                    ends[queue] = ends[queue] or end
        return ends

    @cached_property
    def highest_ends(self) -> dict[int, int]:
        """Offset after the highest message that was ever seen, by queue number."""
        keys = [self.keys(self.acknowledged), self.keys(self.reads), Stored(self.logs).keys]
        return _ends_of(passes.join(keys))

    @cached_property
    def subscribed_tags(self) -> dict[int, list[int]]:
        """Checksums of the tags that a consumer group subscribes to, by the group's number in the
        history. Groups without a tag filter are not in it."""
        numbers = self.record.consumer_groups
        return {numbers[n]: list(map(tag_crc, tags)) for n, tags in self.record.filters.items()}

    @cached_property
    def acknowledged(self) -> Rows:
        """Sends that succeeded."""
        return self.rows(SENDS, Outcome.OK)

    @cached_property
    def sends(self) -> Rows:
        return self.rows(SENDS)

    @cached_property
    def reads(self) -> Rows:
        """Messages that any reader got."""
        return self.rows(READS)

    def queue_numbers(self, rows: Rows) -> Column:
        """Return the queue number of each row; -1 for a row without a queue."""
        if self.generations.deletions:
            return passes.column([self._queue_number(row) for row in rows.each()])
        nodes, topics = rows.column("node"), rows.column("topic")
        packed = passes.combine(nodes, topics, rows.column("queue"))
        number_by_packed = {-1: -1}
        numbers = []
        for value in map(int, packed):
            number = number_by_packed.get(value)
            if number is None:
                node, topic, queue = value >> 40, value >> 20 & 0xFFFFF, value & 0xFFFFF
                name = self.history.topics.get(topic, "")
                number = number_by_packed[value] = self.queues.number(
                    self.group_of(node), name, queue
                )
            numbers.append(number)
        return passes.column(numbers)

    def _queue_number(self, row: Row) -> int:
        """Return the queue number of a row, where a deleted topic and its successor share a
        name."""
        if min(row.node, row.topic, row.queue) < 0:
            return -1
        value = row.value if row.function in (*SENDS, *READS) else None
        topic = self.history.topic(row)
        topic = self.generations.topic_of_row(topic, row.invoked_ns, value)
        return self.queues.number(self.group_of(row.node), topic, row.queue)

    @cached_property
    def generations(self) -> Generations:
        """Generations of the deleted topics, and the messages that belong to each."""
        generations = Generations(deletions_of(self.history.events), self.record.groups)
        for row in self.rows((*SENDS, *READS)).each() if generations.deletions else ():
            generations.learn(self.history.topic(row), row)
        return generations

    def deleted(self, topic: str, time_ns: int | None = None) -> Excuse | None:
        """Return the deletion of a topic (by its name among the queues) if it had begun at
        `time_ns`."""
        deletion = self.generations.by_name.get(topic)
        if deletion is None or (time_ns is not None and time_ns < deletion.begin_ns):
            return None
        return self.excuse(deletion.cause, deletion.begin_ns)

    def deleted_message(self, row: Row) -> Excuse | None:
        """Return the deletion of the topic that held a row's message."""
        topic = self.history.topic(row)
        return self.deleted(self.generations.topic_of_row(topic, row.invoked_ns, row.value))

    def keys(self, rows: Rows) -> Column:
        """Return the key of each row's place; -1 if it is unknown."""
        return passes.pack(self.queue_numbers(rows), rows.column("queue_offset"))

    def place(self, row: Row) -> str:
        """Return a row's place for people: `Topic/3 offset 17`."""
        return f"{self.history.topic(row)}/{row.queue} offset {row.queue_offset}"

    def node(self, row: Row) -> str:
        """Return the name of a row's node; empty if it has none."""
        return self.history.nodes.get(row.node, "")

    def example(self, row: Row, text: str, **more: Any) -> Example:
        """Return a finding about a row's message; `more` are other fields of `Example`."""
        fields: dict[str, Any] = {
            "value": row.value,
            "topic": self.history.topic(row),
            "queue": row.queue,
            "offset": row.queue_offset,
            "time_ns": row.returned_ns,
        }
        return Example(text, **{**fields, **more})

    def group_of(self, node: int) -> int:
        """Return the number of the broker group of a row's node; -1 if it is unknown."""
        return self._group_by_node.get(node, 0 if len(self.record.groups) == 1 else -1)

    def group_of_name(self, node: str) -> int:
        groups = enumerate(self.record.groups.items())
        return next((at for at, (name, nodes) in groups if node == name or node in nodes), -1)

    def events(self, function: Function, *kinds: str) -> list[Event]:
        """Return the events of these kinds, by time."""
        return [
            event
            for event in self.history.events
            if event.function == function and (not kinds or event.kind in kinds)
        ]

    @cached_property
    def splits(self) -> list[tuple[int, int, str]]:
        """Periods in which the scenario ran two masters in one group, each with the second one's
        name."""
        periods: list[tuple[int, int, str]] = []
        for number, event in enumerate(self.history.events):
            if event.function != Function.NEMESIS:
                continue
            step = step_of(event)
            if event.kind == "double" or (event.kind == "promote" and "unfenced" in step.split()):
                end = self.first_after(number, partial(heals, step=step))
                for node in targets_of(event):
                    # Once it has started as a slave again it accepts nothing more.
                    slave = self.first_after(number, partial(_follows, node=node))
                    until = min(end + SPLIT_AFTER_NS, slave + SECOND_NS)
                    periods.append((event.time_ns - SECOND_NS, until, node))
        return periods

    @property
    def foreign(self) -> str:
        """Name of the software under test if it is not our own node; else empty."""
        name = str(self.record.facts.get("software", OWN))
        return "" if name == OWN else name

    @property
    def elects(self) -> bool:
        """True if a controller chose the masters, and not the operator."""
        return bool(self.record.facts.get("elects"))

    @property
    def flushes(self) -> bool:
        """True if a copy counts only once it is on disk."""
        return self.record.promise.flush == "sync"

    @cached_property
    def disks(self) -> Disks:
        """Reliability of each node's disk."""
        return Disks(self)

    def counted(self, node: str, ends: Ends, time_ns: int) -> int:
        """Return how much of a node's log counts at a time, by the promise and by the state of its
        disk."""
        is_durable_level = self.flushes and self.disks.damaged_by(node, time_ns) is None
        return ends.durable if is_durable_level else ends.written

    def excuse(self, cause: str, begin_ns: int, end_ns: int | None = None) -> Excuse:
        """Return an excuse for a period; without an end it lasts until the end of the run."""
        return Excuse(cause, begin_ns, self.record.end_ns if end_ns is None else end_ns)

    def reports(self, node: str, since_ns: int, *, repairs: bool = False) -> list[Event]:
        """Return what a node reported about its store since a time; with `repairs` also its
        repairs."""
        return [
            event
            for event in self.events(Function.NODE, "reported")
            if event.node == node
            and event.time_ns >= since_ns
            and (repairs or event.fields.get("event") != REPAIRED)
        ]

    def first_after(self, number: int, matches: Callable[[Event], bool]) -> int:
        """Return the time of the first event after position `number` that matches; else the run's
        end."""
        later = islice(self.history.events, number + 1, None)
        return next((event.time_ns for event in later if matches(event)), self.record.end_ns)

    def close(self) -> None:
        for node in self.logs:
            node.directory.close()

    @cached_property
    def _group_by_node(self) -> dict[int, int]:
        group_by_id = {id_: self.group_of_name(name) for id_, name in self.history.nodes.items()}
        return {id_: group for id_, group in group_by_id.items() if group >= 0}


class Stored:
    """Messages of some logs, column by column."""

    def __init__(self, logs: Iterable[NodeLog]) -> None:
        self._messages = [log.messages for log in logs]

    def column(self, name: str) -> Column:
        """Return a column by the name of its field in `Messages`."""
        return passes.join([passes.column(getattr(messages, name)) for messages in self._messages])

    @cached_property
    def values(self) -> Column:
        return self.column("values")

    @cached_property
    def keys(self) -> Column:
        return passes.pack(self.column("queues"), self.column("offsets"))

    @cached_property
    def ends(self) -> dict[int, int]:
        """Offset after the last message, by queue number; 0 for a queue without messages."""
        return _ends_of(self.keys)

    @cached_property
    def begins(self) -> dict[int, int]:
        """Offset of the first message, by queue number; queues without messages are not in it."""
        begins: dict[int, int] = {}
        for key in map(int, self.keys):
            if key >= 0:
                offset = key & OFFSET_MASK
                begins[key >> OFFSET_BITS] = min(begins.get(key >> OFFSET_BITS, offset), offset)
        return begins


def _ends_of(keys: Column) -> dict[int, int]:
    """Return the offset after the highest of these places, by queue number."""
    ends: dict[int, int] = defaultdict(int)
    for key in map(int, keys):
        if key >= 0:
            ends[key >> OFFSET_BITS] = max(ends[key >> OFFSET_BITS], (key & OFFSET_MASK) + 1)
    return ends


def gather(
    record: RunRecord,
    history: History,
    directory: str,
    *,
    trace: Trace | None = None,
    acks: Trace | None = None,
) -> Evidence:
    """Read every store that the record names; failures go to `unread`."""
    queues = Queues()
    evidence = Evidence(record, history, queues, [], trace=trace, acks=acks)
    topic_ids = set(map(int, set(evidence.sends.column("topic"))))
    names = sorted(history.topics[topic] for topic in topic_ids if topic in history.topics)
    topics = {name.encode(): name for name in names}
    settings = Settings.from_properties({"messageDelayLevel": record.delay_levels})
    reader = LogReader(topics, queues, evidence.generations, settings)

    def read(node: str, path: str, image: Image | None = None) -> None:
        log = reader.read(node, evidence.group_of_name(node), os.path.join(directory, path), image)
        (evidence.nodes if image is None else evidence.images).append(log)

    for node, path in sorted(record.stores.items()):
        try:
            read(node, path)
        except (NotAStore, OSError) as error:
            evidence.unread[node] = str(error)
    for image in sorted(record.images, key=lambda image: image.time_ns):
        try:
            read(image.node, image.directory, image)
        except (NotAStore, OSError) as error:
            if image.written:
                evidence.unread[f"{image.node} image {image.number}"] = str(error)
    return evidence


def _follows(event: Event, node: str) -> bool:
    """True if an event is a node's start as a slave."""
    is_start = event.function == Function.NODE and event.kind == "start"
    return is_start and event.node == node and not as_master(event)
