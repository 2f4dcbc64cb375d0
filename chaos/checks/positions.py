"""Positions of consumer groups: are they kept, and are they true? (chaos.md 2.5)

Groups begin at a queue's first message; a RESET_OFFSET row tells of a member that went back.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import FaultSpan, faults
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.events import targets_of
from rocketbed.chaos.checks.evidence import Evidence, Rows
from rocketbed.chaos.checks.keys import QueueName
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss_bound import Losses
from rocketbed.chaos.checks.reads import example_of
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import UNKNOWN, Function, Outcome

PERSIST_NS = 6_000_000_000
"""A position committed so long before its node's end is on disk: the interval of 5 s and some."""
VIOLENT = frozenset({"kill", "powercut", "crash", "wipe"})
"""Ends of a node that leave it no time to write positions."""
KEPT_AWAY = frozenset({"crowd", "partition", "link", "pause", "disk", "cpu", "reset"})
"""Steps under which a client may find a slave and not a master that runs."""
SETTLE_NS = 3_000_000_000
"""How long after them it may still."""
PULLED_NS = 6_000_000_000
"""A member's last pull may come so long after its last commit: as long as it is held, and some."""
NO_GROUPS = "no consumer group took part"
Place = tuple[int, int]
"""Number of the consumer group, and of the queue."""


@check("A24 offset regress", "positions read", severity=Severity.WARNING)
def offset_regress(case: Case, found: Findings) -> int:
    """A24: a position that is read, by a member that begins or in between, is not below what was
    committed and kept.

    A master keeps what was committed 6 s before its end, and all of it if it stopped cleanly; the
    commits of the last 6 s may be under way, so nothing is asked of them. While a step is in force
    that keeps clients from the master, they ask a slave, whose table is a copy and may be none yet.
    Machines that are busy save late, so only in simulation is it more than allowed; a warning, as
    a member whose table was lost with its master's begins again and misses nothing.
    """
    evidence, losses = case.evidence, case.losses
    resets, struck = went_back(evidence), faults(evidence)
    kept = kept_commits(evidence, violent_ends(evidence, losses), resets)
    begun: set[tuple[int, int, int]] = set()
    reads = evidence.rows((Function.DELIVER, Function.READ_OFFSET), Outcome.OK)
    if not len(reads):
        raise NotApplicable(NO_GROUPS)
    examined = 0
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(number)
        if row.function == Function.DELIVER:
            if (row.process, group, queue) in begun:
                continue
            begun.add((row.process, group, queue))
        examined += 1
        brokers, back = evidence.group_of(row.node), bisect_right(resets[group, queue], time_ns)
        times, best = kept[group, queue, back]
        last = bisect_right(times, time_ns) - 1
        if last < 0 or offset >= best[last][0]:
            continue
        committed, at = best[last]
        since = f"after {committed} had been committed {(time_ns - at) / 1e9:.1f} s before"
        if row.function == Function.DELIVER:
            text = f"was the first that process {row.process} of group {group} got, {since}"
            example = example_of(evidence, row, text, committed - offset)
        else:
            name = evidence.queues.names[queue]
            text = f"group {group} was told {offset} for {name.topic}/{name.queue}, {since}"
            example = evidence.example(row, text, value=None, distance=committed - offset)
        excuse = losses.loss_between(brokers, at, time_ns) or _cut_off(struck, time_ns)
        if excuse is None and evidence.record.backend != "sim":
            excuse = evidence.excuse("a machine that may be busy saves late", at, time_ns)
        found.add(example, excuse=excuse)
    return examined


def kept_commits(
    evidence: Evidence,
    ends: dict[int, list[int]],
    resets: dict[Place, list[int]],
    *,
    by_node: bool = False,
) -> dict[tuple[int, ...], "_Kept"]:
    """By place, and how often the group had gone back there (and node): what was committed since
    then and kept, from which times on, and the highest by then, with its time.

    A commit is kept 6 s after it, unless its master of that time ended before by violence, which
    it may have done while the answer was on its way.
    """
    found: dict[tuple[int, ...], _Kept] = defaultdict(lambda: ([], []))
    rows = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    commits = positions(evidence, rows)
    begun, nodes = (map(int, rows.column(name)) for name in ("invoked_ns", "node"))
    for (group, queue, offset, at), begun_ns, node in sorted(
        zip(commits, begun, nodes, strict=True), key=lambda one: one[0][3]
    ):
        struck = ends[evidence.group_of(node)]
        after = bisect_right(struck, begun_ns)
        if after < len(struck) and struck[after] < at + PERSIST_NS:
            continue
        place = group, queue, bisect_right(resets[group, queue], at)
        times, best = found[(*place, node) if by_node else place]
        times.append(at + PERSIST_NS)
        best.append(max((offset, at), best[-1]) if best else (offset, at))
    return found


_Kept = tuple[list[int], list[tuple[int, int]]]


def _cut_off(struck: Iterable[FaultSpan], time_ns: int) -> Excuse | None:
    """The step that kept clients from a master at a time."""
    for one in struck:
        if one.verb in KEPT_AWAY | VIOLENT | {"stop"}:
            end_ns = one.end_ns + (SETTLE_NS if one.verb in KEPT_AWAY else 0)
            if one.begin_ns <= time_ns <= end_ns:
                return Excuse(one.step, one.begin_ns, end_ns)
    return None


def violent_ends(evidence: Evidence, losses: Losses) -> dict[int, list[int]]:
    """By group of brokers: when its master of that time ended without a clean stop, rising."""
    found: dict[int, list[int]] = defaultdict(list)
    for event in evidence.history.events:
        cause = event.fields.get("cause") if event.what == "exit" else event.what
        if cause not in VIOLENT:
            continue
        for node in targets_of(event):
            group = evidence.group_of_name(node)
            if group >= 0 and losses.lineages[group].era(event.time_ns - 1).master == node:
                found[group].append(event.time_ns)
    return found


@check("A25 offset overrun", "committed positions", final=True)
def offset_overrun(case: Case, found: Findings) -> int:
    """A25: no committed position lies beyond the end of its queue, in the history or on disk.

    A loss after the group was there excuses one only up to the furthest message that there ever
    was: a member that has passed what is lost now may commit that once more.
    """
    evidence, losses, ends = case.evidence, case.losses, case.evidence.ends
    commits = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    places = positions(evidence, commits)
    for number, (group, queue, offset, time_ns) in enumerate(places):
        if queue < 0 or offset <= ends[queue]:
            continue
        row = commits.row(number)
        example = evidence.example(
            row,
            f"group {group} committed {offset} of {evidence.history.topic(row)}/{row.queue}, which"
            f" ends at {ends[queue]}",
            value=None,
            distance=offset - ends[queue],
        )
        brokers = evidence.group_of(row.node)
        passed_ns = min(time_ns, first_beyond(evidence, group, queue, offset - 1)[0])
        later = losses.loss_between(brokers, passed_ns, ENDLESS)
        later = later or losses.split_between(brokers, row.invoked_ns, time_ns)
        found.add(example, excuse=later if offset <= evidence.ends_ever[queue] else None)
    examined = len(places)
    stored = stored_positions(evidence, None if evidence.foreign else evidence.nodes)
    for node, queue, who, committed in stored:
        examined += 1
        if committed > (end := ends[queue]):
            name = evidence.queues.names[queue]
            text = f"{node.name} keeps {committed} for group {who} of {name.topic}/{name.queue},"
            text += f" which ends at {end}"
            lost = losses.loss_between(node.group, -1, ENDLESS)
            place = {"node": node.name, "topic": name.topic, "queue": name.queue}
            found.add(
                text,
                excuse=lost
                if committed <= evidence.ends_ever[queue]
                else evidence.disks.may_differ(node),
                distance=committed - end,
                offset=committed,
                **place,
            )
    if not examined:
        raise NotApplicable(NO_GROUPS)
    return examined


@dataclass(frozen=True, slots=True)
class Commit:
    begun_ns: int
    ended_ns: int
    """`ENDLESS` where the answer did not come: it may count at any time."""
    offset: int
    node: str
    process: int


def commits_of(evidence: Evidence) -> dict[Place, list[Commit]]:
    """What groups committed, answered or not, by when it began."""
    found: dict[Place, list[Commit]] = defaultdict(list)
    rows = evidence.rows((Function.COMMIT_OFFSET,))
    for number, (group, queue, offset, ended_ns) in enumerate(positions(evidence, rows)):
        row = rows.row(number)
        ended_ns = ended_ns if row.outcome == Outcome.OK else ENDLESS
        node = evidence.node(row)
        one = Commit(row.invoked_ns, ended_ns, offset, node, row.process)
        found[group, queue].append(one)
    for commits in found.values():
        commits.sort(key=lambda one: one.begun_ns)
    return found


def holders(evidence: Evidence) -> dict[Place, dict[int, tuple[int, int]]]:
    """By place, each process that committed or asked there, and when first and last."""
    found: dict[Place, dict[int, tuple[int, int]]] = defaultdict(dict)
    rows = evidence.rows((Function.READ_OFFSET, Function.COMMIT_OFFSET))
    columns = (map(int, rows.column(name)) for name in ("process", "invoked_ns"))
    for (group, queue, _, _), process, time_ns in zip(
        positions(evidence, rows), *columns, strict=True
    ):
        own = found[group, queue]
        first, last = own.get(process, (time_ns, time_ns))
        own[process] = min(first, time_ns), max(last, time_ns)  # what nobody answered comes last
    return found


def other_member(holders: dict[int, tuple[int, int]], commit: Commit) -> Excuse | None:
    """The process that read a queue before a commit of another one, and still does."""
    for process, (first, last) in holders.items():
        if process != commit.process and first < commit.begun_ns <= last + PULLED_NS:
            return Excuse(f"process {process} of the group read the queue too", first, last)
    return None


def positions(evidence: Evidence, rows: Rows) -> list[tuple[int, int, int, int]]:
    """Consumer group, queue number, queue offset and time of each row: when it returned, or began
    where it never did."""
    names = ("queue_offset", "returned_ns", "invoked_ns")
    columns = (rows.column("operation"), evidence.queue_numbers(rows), *map(rows.column, names))
    return [
        (group, queue, offset, begun if returned == UNKNOWN else returned)
        for group, queue, offset, returned, begun in zip(
            *(map(int, column) for column in columns), strict=True
        )
    ]


def first_beyond(evidence: Evidence, group: int, queue: int, offset: int) -> tuple[int, int]:
    """When a group first was beyond an offset, not before and not after: a member had got the
    message there or a later one, or committed a position behind it. A group that asks for some
    tags, whose members are given no others, may have been when one that committed so began.
    `ENDLESS`: never."""
    rows = evidence.rows((Function.COMMIT_OFFSET, Function.DELIVER))
    kinds, processes = rows.column("function"), rows.column("process")
    begun: dict[int, int] = {}
    since = until = ENDLESS
    for (who, where, at, time_ns), kind, process in zip(
        positions(evidence, rows), kinds, processes, strict=True
    ):
        since_ns = begun.setdefault(int(process), time_ns)
        if (who, where) != (group, queue) or at < offset + (kind == Function.COMMIT_OFFSET):
            continue
        since = min(since, since_ns if group in evidence.wanted_tags else time_ns)
        until = min(until, time_ns)
    return since, until


def went_back(evidence: Evidence) -> dict[Place, list[int]]:
    """When groups went back in a queue, rising."""
    found: dict[Place, list[int]] = defaultdict(list)
    for group, queue, _, time_ns in positions(evidence, evidence.rows((Function.RESET_OFFSET,))):
        found[group, queue].append(time_ns)
    return found


def stored_positions(
    evidence: Evidence, nodes: Iterable[NodeLog] | None = None
) -> Iterator[tuple[NodeLog, int, str, int]]:
    """Positions in `consumerOffset.json` of nodes, or of the last masters, in queues that have
    messages: node, queue number, group, offset."""
    known = set(evidence.queues.names)
    for node in evidence.finals() if nodes is None else nodes:
        table = node.directory.config("consumerOffset.json")
        offsets = table.get("offsetTable") if isinstance(table, dict) else None
        for name, row in sorted(offsets.items()) if isinstance(offsets, dict) else ():
            topic, _, group = str(name).rpartition("@")
            for queue, committed in row.items() if isinstance(row, dict) else ():
                if not str(queue).isdigit() or not isinstance(committed, int):
                    continue
                place = QueueName(node.group, topic, int(queue))
                if place in known:
                    yield node, evidence.queues.number(*place), group, committed
