"""What the checks look at: record, history, ends of the logs, and the directories read.

Rows are taken in columns, and queues get numbers (`keys`), so that the passes run over integers.
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
from rocketbed.chaos.evidence.node_events import MENDED
from rocketbed.chaos.evidence.record import Image, RunRecord
from rocketbed.chaos.evidence.trace import Ends, Trace
from rocketbed.chaos.evidence.workload import tag_crc
from rocketbed.inspect import NotAStore, Settings

SENDS = (Function.SEND, Function.SEND_ONEWAY)
READS = (Function.GOT, Function.DELIVER)
SECOND_NS = 1_000_000_000
OWN = "rocketbed"
"""Our own node, as `Software.name` has it."""
SPLIT_AFTER_NS = 10 * SECOND_NS
"""So long a second master may still answer after it was told to be a slave again."""


@dataclass(slots=True)
class Rows:
    """Some rows of the history, column by column; `positions` are theirs in the history."""

    history: History
    positions: Column

    def __len__(self) -> int:
        return len(self.positions)

    def column(self, name: str) -> Column:
        """A column by the field's name in `Row`."""
        whole = passes.column(self.history.columns[name])
        return passes.take(whole, self.positions)

    def row(self, number: int) -> Row:
        """One of them, counted from 0."""
        return self.history.columns.row(int(self.positions[number]))

    def each(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def at(self, numbers: Any) -> "Rows":
        """Some of them, counted from 0."""
        return Rows(self.history, passes.take(self.positions, numbers))


@dataclass
class Evidence:
    """Everything the checks of one run look at."""

    record: RunRecord
    history: History
    queues: Queues
    nodes: list[NodeLog]
    """Final directories, by node."""
    images: list[NodeLog] = field(default_factory=list)
    """Directories out of the middle of the run, in the order of time."""
    trace: Trace | None = None
    """Ends of the logs as the disk layer saw them; None where nothing observed them."""
    acks: Trace | None = None
    """What slaves reported: `written` is the reported offset."""
    unread: dict[str, str] = field(default_factory=dict)
    """Directories that could not be read, and why."""

    @cached_property
    def group_names(self) -> list[str]:
        return list(self.record.groups)

    @property
    def logs(self) -> list[NodeLog]:
        """Final ones and images."""
        return [*self.nodes, *self.images]

    def finals(self) -> list[NodeLog]:
        """The log of each group's last master."""
        leaders = set(self.record.leaders.values())
        return [node for node in self.nodes if node.name in leaders]

    def final(self, group: int) -> NodeLog | None:
        """A group's; None when its master's directory was not read, or there was no master."""
        return next((node for node in self.finals() if node.group == group), None)

    def no_final(self) -> str:
        """Why a final log is missing; empty when none is."""
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
        """Rows of these functions, and of these outcomes where any are given."""
        positions = passes.where(passes.column(self.history.columns["function"]), functions)
        if outcomes:
            outcome = passes.take(passes.column(self.history.columns["outcome"]), positions)
            positions = passes.take(positions, passes.where(outcome, outcomes))
        return Rows(self.history, positions)

    @cached_property
    def ends(self) -> dict[int, int]:
        """By queue number the offset behind its last message; where all of a queue has expired, as
        far as anybody saw it. Of a log that is whole what is not there was lost (seed 1281131)."""
        ends = self.stored.ends.copy()
        expired = {node.group for node in self.finals() if node.log_min}
        if self.record.reserved_ns is not None:
            for queue, end in self.ends_ever.items():
                if self.queues.names[queue].group in expired:
                    ends[queue] = ends[queue] or end
        return ends

    @cached_property
    def ends_ever(self) -> dict[int, int]:
        """By queue number the offset behind the furthest message that anybody ever saw."""
        seen = [self.keys(self.acknowledged), self.keys(self.reads), Stored(self.logs).keys]
        return _ends_of(passes.join(seen))

    @cached_property
    def wanted_tags(self) -> dict[int, list[int]]:
        """Of each group, by its number in the history, that asks for some tags: their checksums."""
        numbers = self.record.consumer_groups
        return {numbers[n]: list(map(tag_crc, tags)) for n, tags in self.record.filters.items()}

    @cached_property
    def acknowledged(self) -> Rows:
        """Sends that were answered with success."""
        return self.rows(SENDS, Outcome.OK)

    @cached_property
    def sends(self) -> Rows:
        return self.rows(SENDS)

    @cached_property
    def reads(self) -> Rows:
        """All messages that any reader got."""
        return self.rows(READS)

    def queue_numbers(self, rows: Rows) -> Column:
        """The number of each row's queue; -1 for a row that names none."""
        if self.generations.deletions:
            return passes.column([self._queue_number(row) for row in rows.each()])
        nodes, topics = rows.column("node"), rows.column("topic")
        packed = passes.combine(nodes, topics, rows.column("queue"))
        known = {-1: -1}
        numbers = []
        for value in map(int, packed):
            number = known.get(value)
            if number is None:
                node, topic, queue = value >> 40, value >> 20 & 0xFFFFF, value & 0xFFFFF
                name = self.history.topics.get(topic, "")
                number = known[value] = self.queues.number(self.group_of(node), name, queue)
            numbers.append(number)
        return passes.column(numbers)

    def _queue_number(self, row: Row) -> int:
        """The number of a row's queue; where topics were deleted two may have one name."""
        if min(row.node, row.topic, row.queue) < 0:
            return -1
        value = row.value if row.function in (*SENDS, *READS) else None
        topic = self.history.topic(row)
        topic = self.generations.topic_of_row(topic, row.invoked_ns, value)
        return self.queues.number(self.group_of(row.node), topic, row.queue)

    @cached_property
    def generations(self) -> Generations:
        """Which topics were deleted, and which messages with them."""
        found = Generations(deletions_of(self.history.events), self.record.groups)
        for row in self.rows((*SENDS, *READS)).each() if found.deletions else ():
            found.learn(self.history.topic(row), row)
        return found

    def deleted(self, topic: str, time_ns: int | None = None) -> Excuse | None:
        """The deletion of a topic (by its name among the queues), as far as it had begun."""
        deletion = self.generations.by_name.get(topic)
        if deletion is None or (time_ns is not None and time_ns < deletion.begin_ns):
            return None
        return self.excuse(deletion.cause, deletion.begin_ns)

    def deleted_message(self, row: Row) -> Excuse | None:
        """The deletion of the topic that a row's message was in."""
        topic = self.history.topic(row)
        return self.deleted(self.generations.topic_of_row(topic, row.invoked_ns, row.value))

    def keys(self, rows: Rows) -> Column:
        """The key of each row's place; -1 where it is not known."""
        return passes.pack(self.queue_numbers(rows), rows.column("queue_offset"))

    def place(self, row: Row) -> str:
        """Where a row's message is, for people: `Topic/3 offset 17`."""
        return f"{self.history.topic(row)}/{row.queue} offset {row.queue_offset}"

    def node(self, row: Row) -> str:
        """Name of the node that a row names; empty for none."""
        return self.history.nodes.get(row.node, "")

    def example(self, row: Row, text: str, **more: Any) -> Example:
        """A finding about the message that a row names; `more` are other fields of `Example`."""
        known: dict[str, Any] = {
            "value": row.value,
            "topic": self.history.topic(row),
            "queue": row.queue,
            "offset": row.queue_offset,
            "time_ns": row.returned_ns,
        }
        return Example(text, **{**known, **more})

    def group_of(self, node: int) -> int:
        """Number of the broker group that a row's node belongs to; -1 when that is not known."""
        return self._group_by_node.get(node, 0 if len(self.record.groups) == 1 else -1)

    def group_of_name(self, node: str) -> int:
        groups = enumerate(self.record.groups.items())
        return next((at for at, (name, nodes) in groups if node == name or node in nodes), -1)

    def events(self, function: Function, *what: str) -> list[Event]:
        """Events of a kind, in the order of time."""
        return [
            event
            for event in self.history.events
            if event.function == function and (not what or event.what in what)
        ]

    @cached_property
    def splits(self) -> list[tuple[int, int, str]]:
        """Times in which the scenario ran two masters in one group, and the second one's name."""
        found: list[tuple[int, int, str]] = []
        for number, event in enumerate(self.history.events):
            if event.function != Function.NEMESIS:
                continue
            step = step_of(event)
            if event.what == "double" or (event.what == "promote" and "unfenced" in step.split()):
                end = self.first_after(number, partial(heals, step=step))
                for node in targets_of(event):
                    # Once it has been started as a slave again it takes nothing any more.
                    slave = self.first_after(number, partial(_follows, node=node))
                    until = min(end + SPLIT_AFTER_NS, slave + SECOND_NS)
                    found.append((event.time_ns - SECOND_NS, until, node))
        return found

    @property
    def foreign(self) -> str:
        """The software under test where it is not our own node; empty where it is."""
        name = str(self.record.facts.get("software", OWN))
        return "" if name == OWN else name

    @property
    def elects(self) -> bool:
        """Whether a controller chose the masters; else the operator did."""
        return bool(self.record.facts.get("elects"))

    @property
    def flushes(self) -> bool:
        """Whether a copy counts only once it is on disk."""
        return self.record.promise.flush == "sync"

    @cached_property
    def disks(self) -> Disks:
        """What copies are worth."""
        return Disks(self)

    def counted(self, node: str, ends: Ends, time_ns: int) -> int:
        """How much of a node's log counts at a time, by the promise and by what its disk is worth
        then."""
        is_worth = self.flushes and self.disks.damaged_by(node, time_ns) is None
        return ends.durable if is_worth else ends.written

    def excuse(self, cause: str, begin_ns: int, end_ns: int | None = None) -> Excuse:
        """An excuse for a time; without an end until that of the run."""
        return Excuse(cause, begin_ns, self.record.end_ns if end_ns is None else end_ns)

    def reports(self, node: str, since_ns: int, *, mended: bool = False) -> list[Event]:
        """What a node reported of its store from a time on; with `mended` also what it mended."""
        return [
            event
            for event in self.events(Function.NODE, "reported")
            if event.node == node
            and event.time_ns >= since_ns
            and (mended or event.fields.get("event") != MENDED)
        ]

    def first_after(self, number: int, is_it: Callable[[Event], bool]) -> int:
        """Time of the first such event behind a position of the events; without any, the end."""
        later = islice(self.history.events, number + 1, None)
        return next((event.time_ns for event in later if is_it(event)), self.record.end_ns)

    def close(self) -> None:
        for node in self.logs:
            node.directory.close()

    @cached_property
    def _group_by_node(self) -> dict[int, int]:
        found = {id_: self.group_of_name(name) for id_, name in self.history.nodes.items()}
        return {id_: group for id_, group in found.items() if group >= 0}


class Stored:
    """Messages of some logs, column by column."""

    def __init__(self, logs: Iterable[NodeLog]) -> None:
        self._messages = [log.messages for log in logs]

    def column(self, name: str) -> Column:
        """A column by the field's name in `Messages`."""
        return passes.join([passes.column(getattr(one, name)) for one in self._messages])

    @cached_property
    def values(self) -> Column:
        return self.column("values")

    @cached_property
    def keys(self) -> Column:
        return passes.pack(self.column("queues"), self.column("offsets"))

    @cached_property
    def ends(self) -> dict[int, int]:
        """By queue number the offset behind its last message; 0 for a queue without any."""
        return _ends_of(self.keys)

    @cached_property
    def begins(self) -> dict[int, int]:
        """By queue number the offset of its first message; a queue without any is not in it."""
        begins: dict[int, int] = {}
        for key in map(int, self.keys):
            if key >= 0:
                offset = key & OFFSET_MASK
                begins[key >> OFFSET_BITS] = min(begins.get(key >> OFFSET_BITS, offset), offset)
        return begins


def _ends_of(keys: Column) -> dict[int, int]:
    """By queue number the offset behind the furthest of these places."""
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
    """Read every directory that the record names; what cannot be read is noted in `unread`."""
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
    """Whether an event is a node's start as a slave."""
    is_start = event.function == Function.NODE and event.what == "start"
    return is_start and event.node == node and not as_master(event)
