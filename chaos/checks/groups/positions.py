"""Positions of consumer groups: preserved, and correct (chaos.md 2.5).

Groups begin at a queue's first message; a RESET_OFFSET row marks a member's rewind.
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
from rocketbed.chaos.checks.examples import example_of
from rocketbed.chaos.checks.keys import QueueName
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.loss.bound import Losses
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import UNKNOWN, Function, Outcome

PERSIST_NS = 6_000_000_000
"""A position committed this long before its node's end is on disk: the interval of 5 s and a
margin."""
VIOLENT = frozenset({"kill", "powercut", "crash", "wipe"})
"""Ends of a node that leave it no time to write positions."""
KEPT_AWAY = frozenset({"crowd", "partition", "link", "pause", "disk", "cpu", "reset"})
"""Steps under which a client may reach a slave but not the running master."""
SETTLE_NS = 3_000_000_000
"""Time after such a step in which that may still be so."""
PULLED_NS = 6_000_000_000
"""A member's last pull may come this long after its last commit: as long as it is held, and a
margin."""
NO_GROUPS = "no consumer group took part"
Place = tuple[int, int]
"""Number of the consumer group, and of the queue."""


@check("offset-regress", "positions read", severity=Severity.WARNING)
def offset_regress(case: Case, findings: Findings) -> int:
    """A position that is read, by a member that begins or in between, is not below what was
    committed and preserved.

    A master preserves what was committed 6 s before its end, and everything if it stopped cleanly;
    commits of the last 6 s may still be in progress, so they are not judged. While a step keeps
    clients from the master, they ask a slave, whose table is a copy and may be empty. Busy machines
    save late, so outside of simulation a finding is excused. It is a warning, as a member whose
    table was lost with its master's starts again and misses nothing.
    """
    evidence, losses = case.evidence, case.losses
    resets, fault_spans = rewind_times(evidence), faults(evidence)
    kept_by_place = kept_commits(evidence, violent_ends(evidence, losses), resets)
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
        times, best = kept_by_place[group, queue, back]
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
        excuse = losses.loss_between(brokers, at, time_ns) or _kept_from_master(
            fault_spans, time_ns
        )
        if excuse is None and evidence.record.backend != "sim":
            excuse = evidence.excuse("a machine that may be busy saves late", at, time_ns)
        findings.add(example, excuse=excuse)
    return examined


def kept_commits(
    evidence: Evidence,
    ends: dict[int, list[int]],
    resets: dict[Place, list[int]],
    *,
    by_node: bool = False,
) -> dict[tuple[int, ...], "_Kept"]:
    """Return the commits that must be preserved since each rewind of a group, by place and number
    of rewinds (and node).

    Each value has the times from which commits count, and the highest (offset, time) by then. A
    commit counts 6 s after it, unless its master of that time ended by violence before, perhaps
    while the answer was on its way.
    """
    kept_by_place: dict[tuple[int, ...], _Kept] = defaultdict(lambda: ([], []))
    rows = evidence.rows((Function.COMMIT_OFFSET,), Outcome.OK)
    commits = positions(evidence, rows)
    begun, nodes = (map(int, rows.column(name)) for name in ("invoked_ns", "node"))
    for (group, queue, offset, at), begun_ns, node in sorted(
        zip(commits, begun, nodes, strict=True), key=lambda item: item[0][3]
    ):
        violent_ends_ns = ends[evidence.group_of(node)]
        after = bisect_right(violent_ends_ns, begun_ns)
        if after < len(violent_ends_ns) and violent_ends_ns[after] < at + PERSIST_NS:
            continue
        place = group, queue, bisect_right(resets[group, queue], at)
        times, best = kept_by_place[(*place, node) if by_node else place]
        times.append(at + PERSIST_NS)
        best.append(max((offset, at), best[-1]) if best else (offset, at))
    return kept_by_place


_Kept = tuple[list[int], list[tuple[int, int]]]


def _kept_from_master(fault_spans: Iterable[FaultSpan], time_ns: int) -> Excuse | None:
    """Return the step that kept clients from a master at a time."""
    for fault in fault_spans:
        if fault.verb in KEPT_AWAY | VIOLENT | {"stop"}:
            end_ns = fault.end_ns + (SETTLE_NS if fault.verb in KEPT_AWAY else 0)
            if fault.begin_ns <= time_ns <= end_ns:
                return Excuse(fault.step, fault.begin_ns, end_ns)
    return None


def violent_ends(evidence: Evidence, losses: Losses) -> dict[int, list[int]]:
    """Return the times at which each broker group's master ended without a clean stop,
    ascending."""
    ends: dict[int, list[int]] = defaultdict(list)
    for event in evidence.history.events:
        cause = event.fields.get("cause") if event.kind == "exit" else event.kind
        if cause not in VIOLENT:
            continue
        for node in targets_of(event):
            group = evidence.group_of_name(node)
            if group >= 0 and losses.lineages[group].era(event.time_ns - 1).master == node:
                ends[group].append(event.time_ns)
    return ends


@check("offset-overrun", "committed positions", final=True)
def offset_overrun(case: Case, findings: Findings) -> int:
    """No committed position lies beyond the end of its queue, in the history or on disk.

    A loss after the group had been there excuses a position only up to the highest message that
    ever was there: a member that has passed a lost message may commit its position again.
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
        passed_ns = min(time_ns, passed_between(evidence, group, queue, offset - 1)[0])
        later = losses.loss_between(brokers, passed_ns, ENDLESS)
        later = later or losses.split_between(brokers, row.invoked_ns, time_ns)
        findings.add(example, excuse=later if offset <= evidence.highest_ends[queue] else None)
    examined = len(places)
    stored = stored_positions(evidence, None if evidence.foreign else evidence.nodes)
    for node, queue, group_name, committed in stored:
        examined += 1
        if committed > (end := ends[queue]):
            name = evidence.queues.names[queue]
            text = f"{node.name} keeps {committed} for group {group_name} of"
            text += f" {name.topic}/{name.queue}, which ends at {end}"
            lost = losses.loss_between(node.group, -1, ENDLESS)
            place = {"node": node.name, "topic": name.topic, "queue": name.queue}
            findings.add(
                text,
                excuse=lost
                if committed <= evidence.highest_ends[queue]
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
    """`ENDLESS` without an answer: it may count at any time."""
    offset: int
    node: str
    process: int


def commits_of(evidence: Evidence) -> dict[Place, list[Commit]]:
    """Return the commits of groups, answered or not, by when they began."""
    commits_by_place: dict[Place, list[Commit]] = defaultdict(list)
    rows = evidence.rows((Function.COMMIT_OFFSET,))
    for number, (group, queue, offset, ended_ns) in enumerate(positions(evidence, rows)):
        row = rows.row(number)
        ended_ns = ended_ns if row.outcome == Outcome.OK else ENDLESS
        node = evidence.node(row)
        commit = Commit(row.invoked_ns, ended_ns, offset, node, row.process)
        commits_by_place[group, queue].append(commit)
    for commits in commits_by_place.values():
        commits.sort(key=lambda commit: commit.begun_ns)
    return commits_by_place


def process_spans(evidence: Evidence) -> dict[Place, dict[int, tuple[int, int]]]:
    """Return the first and last time at which each process committed or queried, by place."""
    spans: dict[Place, dict[int, tuple[int, int]]] = defaultdict(dict)
    rows = evidence.rows((Function.READ_OFFSET, Function.COMMIT_OFFSET))
    columns = (map(int, rows.column(name)) for name in ("process", "invoked_ns"))
    for (group, queue, _, _), process, time_ns in zip(
        positions(evidence, rows), *columns, strict=True
    ):
        spans_of_place = spans[group, queue]
        first, last = spans_of_place.get(process, (time_ns, time_ns))
        # Rows of unanswered requests come last, out of order.
        spans_of_place[process] = min(first, time_ns), max(last, time_ns)
    return spans


def concurrent_reader(holders: dict[int, tuple[int, int]], commit: Commit) -> Excuse | None:
    """Return the process that read a queue before a commit of another one, and still does."""
    for process, (first, last) in holders.items():
        if process != commit.process and first < commit.begun_ns <= last + PULLED_NS:
            return Excuse(f"process {process} of the group read the queue too", first, last)
    return None


def positions(evidence: Evidence, rows: Rows) -> list[tuple[int, int, int, int]]:
    """Return consumer group, queue number, queue offset and time of each row.

    The time is that of the return, or of the beginning if it never returned.
    """
    names = ("queue_offset", "returned_ns", "invoked_ns")
    columns = (rows.column("operation"), evidence.queue_numbers(rows), *map(rows.column, names))
    return [
        (group, queue, offset, begun if returned == UNKNOWN else returned)
        for group, queue, offset, returned, begun in zip(
            *(map(int, column) for column in columns), strict=True
        )
    ]


def passed_between(evidence: Evidence, group: int, queue: int, offset: int) -> tuple[int, int]:
    """Return the earliest and the latest time at which a group may first have passed an offset.

    It passes when a member gets the message there or a later one, or commits a position after it. A
    group with a tag filter may have passed as early as the committing member began, as its members
    get no other messages. `ENDLESS` for never.
    """
    rows = evidence.rows((Function.COMMIT_OFFSET, Function.DELIVER))
    kinds, processes = rows.column("function"), rows.column("process")
    first_seen: dict[int, int] = {}
    since = until = ENDLESS
    for (row_group, row_queue, row_offset, time_ns), kind, process in zip(
        positions(evidence, rows), kinds, processes, strict=True
    ):
        since_ns = first_seen.setdefault(int(process), time_ns)
        if (row_group, row_queue) != (group, queue) or row_offset < offset + (
            kind == Function.COMMIT_OFFSET
        ):
            continue
        since = min(since, since_ns if group in evidence.subscribed_tags else time_ns)
        until = min(until, time_ns)
    return since, until


def rewind_times(evidence: Evidence) -> dict[Place, list[int]]:
    """Return when groups were rewound in a queue, ascending."""
    times: dict[Place, list[int]] = defaultdict(list)
    for group, queue, _, time_ns in positions(evidence, evidence.rows((Function.RESET_OFFSET,))):
        times[group, queue].append(time_ns)
    return times


def stored_positions(
    evidence: Evidence, nodes: Iterable[NodeLog] | None = None
) -> Iterator[tuple[NodeLog, int, str, int]]:
    """Yield (node, queue number, group, offset) for positions in `consumerOffset.json` of nodes, or
    of the last masters, in queues that have messages."""
    queue_names = set(evidence.queues.names)
    for node in evidence.finals() if nodes is None else nodes:
        table = node.directory.config("consumerOffset.json")
        offsets = table.get("offsetTable") if isinstance(table, dict) else None
        for name, row in sorted(offsets.items()) if isinstance(offsets, dict) else ():
            topic, _, group = str(name).rpartition("@")
            for queue, committed in row.items() if isinstance(row, dict) else ():
                if not str(queue).isdigit() or not isinstance(committed, int):
                    continue
                place = QueueName(node.group, topic, int(queue))
                if place in queue_names:
                    yield node, evidence.queues.number(*place), group, committed
