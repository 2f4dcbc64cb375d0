"""What the checks look at: record, history, ends of the logs, and the directories read.

Rows are taken in columns, and queues get numbers (`keys`), so that the passes run over integers.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.deletions import Generations, deletions_of
from rocketbed.chaos.checkers.keys import OFFSET_BITS, OFFSET_MASK, Queues
from rocketbed.chaos.checkers.logs import LogReader, NodeLog
from rocketbed.chaos.checkers.passes import Column
from rocketbed.chaos.checkers.result import Example, Excuse
from rocketbed.chaos.damage import MENDED, STRAYS
from rocketbed.chaos.history import Event, Function, History, Outcome, Row
from rocketbed.chaos.record import Image, RunRecord
from rocketbed.chaos.trace import Ends, Trace
from rocketbed.chaos.workload import tag_crc
from rocketbed.inspect import NotAStore, Settings

SENDS = (Function.SEND, Function.SEND_ONEWAY)
_LOG_BYTE: Final = re.compile(r"commitlog/(?P<start>[0-9]{20}) byte (?P<byte>[0-9]+)$")
READS = (Function.GOT, Function.DELIVER)
SECOND_NS = 1_000_000_000
OWN = "rocketbed"
"""Our own node, as `Software.name` has it."""
LYING = "lost-fsync"
"""A fault of a disk that no store can see in time."""
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
        far as anybody saw it."""
        ends = self.stored.ends.copy()
        if self.record.reserved_ns is not None:
            for queue, end in self.ends_ever.items():
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

    def counted(self, node: str, ends: Ends, time_ns: int) -> int:
        """How much of a node's log counts at a time, by the promise and by what its disk is worth
        then."""
        is_worth = self.flushes and self.damaged_by(node, time_ns) is None
        return ends.durable if is_worth else ends.written

    def damaged_by(self, node: str, time_ns: int) -> Excuse | None:
        """Why a node's own copy proved nothing at a time: its disk had lied, or had been damaged
        and the node said so, and it had no new disk since."""
        causes = [*self._lies.get(node, ()), *self._told_damages.get(node, ())]
        return next((one for one in causes if one.begin_ns <= time_ns <= one.end_ns), None)

    def misses_keys(self, node: str, time_ns: int) -> Excuse | None:
        """Why a node's index may lack keys at a time: its disk had lied, or index or log had been
        damaged and the node said so; its next start after that builds the index again."""
        lies = self._lies.get(node, ())
        if lied := next((one for one in lies if one.begin_ns <= time_ns <= one.end_ns), None):
            return lied
        for damage in self.events(Function.NODE, "damaged"):
            told = self.reports(node, damage.time_ns) if damage.node == node else []
            if not told or not str(damage.fields.get("hit")).startswith(("index/", "commitlog/")):
                continue
            starts = (
                event.time_ns
                for event in self.events(Function.NODE, "recovered")
                if event.node == node and event.time_ns > told[0].time_ns
            )
            if damage.time_ns <= time_ns <= min(starts, default=time_ns):
                cause = f"the index of {node} was damaged, which it reported"
                return self.excuse(cause, damage.time_ns, min(starts, default=None))
        return None

    @cached_property
    def _lies(self) -> dict[str, list[Excuse]]:
        """By node each time that its disk began to lie."""
        found: dict[str, list[Excuse]] = defaultdict(list)
        for event in self.events(Function.NEMESIS):
            if LYING in {event.what, *step_of(event).split()}:
                for node in targets_of(event):
                    cause = f"the disk of {node} lied: {step_of(event) or event.what}"
                    found[node].append(self._until_wiped(node, cause, event.time_ns))
        return dict(found)

    @cached_property
    def _told_damages(self) -> dict[str, list[Excuse]]:
        """By node each damage of its disk that it reported, or that nobody can see.

        Damage that a node never reported excuses nothing: it is found, or it did no harm. That of a
        log goes with the bytes to those that copy them, and counts for them once they report it
        (seed 867449).
        """
        found: dict[str, list[Excuse]] = defaultdict(list)
        for damage in self.events(Function.NODE, "damaged"):
            node, told = damage.node, self.reports(damage.node, damage.time_ns)
            if damage.fields.get("untold") or told:
                cause = f"the disk of {node} was damaged ({damage.fields.get('kind')})"
                cause += ", which it reported" if told else ", so that nobody can see it"
                found[node].append(self._until_wiped(node, cause, damage.time_ns))
            if told and str(damage.fields.get("hit")).startswith("commitlog/"):
                group = self.group_of_name(node)
                for other in self.events(Function.NODE, "reported"):
                    if self.group_of_name(other.node) != group:
                        continue
                    if other.time_ns > damage.time_ns and other.fields.get("event") != MENDED:
                        copied = f"{other.node} reported damage of {node} that it copied"
                        excuse = self._until_wiped(other.node, copied, other.time_ns)
                        found[other.node].append(excuse)
        return dict(found)

    @cached_property
    def _hits(self) -> list[tuple[int, int, Excuse]]:
        """Group, log offset and damage of each byte that was altered at rest, if its node told of
        it or nobody can see it: it goes with the bytes to those that copy them."""
        found = []
        for event in self.events(Function.NODE, "damaged"):
            place = _LOG_BYTE.search(str(event.fields.get("hit")))
            if place is None:
                continue
            if event.fields.get("untold") or self.reports(event.node, event.time_ns):
                at = int(place["start"]) + int(place["byte"])
                cause = f"byte {at} of the log of {event.node} was damaged"
                excuse = self.excuse(cause, event.time_ns)
                found.append((self.group_of_name(event.node), at, excuse))
        return found

    def hit(self, group: int, begin: int, end: int) -> Excuse | None:
        """Damage of a byte of these in a group's logs."""
        hits = (excuse for of, at, excuse in self._hits if of == group and begin <= at < end)
        return next(hits, None)

    def altered(self, value: int) -> Excuse | None:
        """Damage of the very record of a value, which may stay in the log as another's."""
        for log in self.logs if self._hits else ():
            messages = log.messages
            for number in passes.where(passes.column(messages.values), (value,)):
                begin = messages.physicals[number]
                if excuse := self.hit(log.group, begin, begin + messages.sizes[number]):
                    return excuse
        return None

    def _until_wiped(self, node: str, cause: str, begin_ns: int) -> Excuse:
        wipes = (
            event.time_ns
            for event in self.events(Function.NEMESIS, "wipe")
            if node in targets_of(event) and event.time_ns > begin_ns
        )
        return self.excuse(cause, begin_ns, min(wipes, default=None))

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

    def may_differ(self, *logs: NodeLog, file: str = "") -> Excuse | None:
        """Why a copy, or such a file of it, may be wrong: not before its disk was damaged, and
        not once it has a new one."""
        for log in logs:
            stray_ns = self._damages.get(("stray", log.name))
            if file in STRAYS and stray_ns is not None:
                return self.excuse(f"a stray file was put on the disk of {log.name}", stray_ns)
            until_ns = self.record.end_ns if log.image is None else log.image.time_ns
            emptied_ns = max(
                (time_ns for time_ns in self._emptied.get(log.name, ()) if time_ns < until_ns),
                default=-1,
            )
            # A disk may go on lying when it is emptied; damage goes with what was there.
            causes = [(excuse, -1) for excuse in self._lies.get(log.name, ())]
            causes += [(excuse, emptied_ns) for excuse in self._told_damages.get(log.name, ())]
            for excuse, since_ns in causes:
                if since_ns <= excuse.begin_ns <= until_ns:
                    return excuse
        return None

    @cached_property
    def _damages(self) -> dict[tuple[str, str], int]:
        """Kind and node -> when that was done to it last."""
        events = self.events(Function.NODE, "damaged")
        return {(str(event.fields.get("kind")), event.node): event.time_ns for event in events}

    @cached_property
    def _emptied(self) -> dict[str, list[int]]:
        """By node each time that it was given an empty disk."""
        found: dict[str, list[int]] = defaultdict(list)
        for event in self.history.events:
            if event.what == "wipe":
                for node in targets_of(event):
                    found[node].append(event.time_ns)
        return dict(found)

    def emptied_since(self, node: str, time_ns: int) -> bool:
        """Whether a node was given an empty disk after a time."""
        return any(at > time_ns for at in self._emptied.get(node, ()))

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


def step_of(event: Event) -> str:
    """The step that an event tells of; empty for none."""
    return str(event.fields.get("step", ""))


def heals(event: Event, step: str) -> bool:
    """Whether an event ends what a step began."""
    return event.what == "heal" and step_of(event) in (step, "everything")


def _follows(event: Event, node: str) -> bool:
    """Whether an event is a node's start as a slave."""
    is_start = event.function == Function.NODE and event.what == "start"
    return is_start and event.node == node and not as_master(event)


def targets_of(event: Event) -> list[str]:
    """Whom an event concerns."""
    targets = event.fields.get("targets", ())
    return [event.node] if event.node else [str(target) for target in targets]


def as_master(event: Event) -> bool:
    return event.fields.get("id") == 0 or event.fields.get("role") == "master"
