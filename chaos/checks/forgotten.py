"""Does a master keep the positions that it was given, through whatever kills? (chaos.md 2.5)

By what it tells of them (A35), and by its table in what a kill or a power cut left of it (S28).
"""

from bisect import bisect_right
from collections.abc import Iterator

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import faults, no_disk
from rocketbed.chaos.checks.lineage import PROMOTE, WIPE
from rocketbed.chaos.checks.positions import (
    PERSIST_NS,
    commits_of,
    holders,
    kept_commits,
    other_member,
    positions,
    stored_positions,
    violent_ends,
    went_back,
)
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome

OFFSETS = "consumerOffset.json"
RETRY_NS = 1_000_000_000
"""A node tries so soon again to write a table that it could not."""
HELD_UP = frozenset({"pause", "cpu"})
"""Steps under which a node comes to write its tables later."""


class Given:
    """What the nodes of a run were given as masters, and have to keep."""

    def __init__(self, case: Case) -> None:
        evidence = case.evidence
        self._case = case
        self._back = went_back(evidence)
        self._struck = faults(evidence)
        self._given, self._held = commits_of(evidence), holders(evidence)
        self._said = {place: {one.offset for one in some} for place, some in self._given.items()}
        self._ends = violent_ends(evidence, case.losses)
        self._kept = kept_commits(evidence, self._ends, self._back, by_node=True)

    def places(self, number: int) -> Iterator[tuple[int, int]]:
        """Group and queue of each position that a node, by its number, had to keep once."""
        yield from sorted({(group, queue) for group, queue, _, by in self._kept if by == number})

    def due(self, group: int, queue: int, number: int, time_ns: int) -> tuple[int, int] | None:
        """The highest position that a node, by its number, has to have at a time, and when it was
        committed; None where it need not have any."""
        evidence, losses = self._case.evidence, self._case.losses
        node = evidence.history.nodes.get(number, "")
        place = group, queue, bisect_right(self._back[group, queue], time_ns), number
        times, best = self._kept[place]
        last = bisect_right(times, time_ns) - 1
        if node not in losses.ends or last < 0:
            return None
        committed, at = best[last]
        lineage = losses.lineages[evidence.group_of(number)]
        if any(lineage.era(one).master != node for one in (at, time_ns)):
            return None  # what a slave was given its master's table replaces
        if any(begin <= time_ns and at <= end for begin, end, _ in evidence.splits):
            return (
                None  # two masters: what one was given the other, or its successor, need not have
            )
        between = [one for one in lineage.changes if at < one.time_ns <= time_ns]
        if any(one.what == (WIPE if one.node == node else PROMOTE) for one in between):
            return None
        return committed, at

    def is_other(self, group: int, queue: int, at: int, time_ns: int, offset: int) -> bool:
        """Whether `offset`, or less, was committed after `at` by a time: a member may have begun
        with what a slave told it (seed 841009)."""
        return any(
            one.offset <= offset and one.begun_ns <= time_ns and at < one.ended_ns
            for one in self._given[group, queue]
        )

    def excuse(
        self, group: int, queue: int, number: int, at: int, time_ns: int, offset: int
    ) -> Excuse | None:
        """Why a node may have `offset` before a time, and not what was committed to it at `at`.

        Where two members read one queue, each of the other's pulls says again where that one stands
        (seed 857237).
        """
        evidence, losses = self._case.evidence, self._case.losses
        excuse = losses.loss_between(evidence.group_of(number), at, time_ns)
        excuse = excuse or evidence.disks.damaged_by(evidence.history.nodes[number], time_ns)
        for one in self._given[group, queue] if excuse is None else ():
            if one.ended_ns == at and offset in self._said[group, queue]:
                excuse = other_member(self._held[group, queue], one)
        return excuse

    def unwritten(self, node: str, at: int, time_ns: int) -> Excuse | None:
        """The step that kept a node from writing its tables between two times."""
        return no_disk(self._struck, node, at, time_ns)

    def held_up_before_an_end(self, node: str, at: int, time_ns: int) -> Excuse | None:
        """The same of a node that was killed between two times."""
        ends = self._ends[self._case.evidence.group_of_name(node)]
        between = (end for end in ends if at < end <= time_ns)
        return next(filter(None, (self.held_up(node, at, end) for end in between)), None)

    def held_up(self, node: str, at: int, time_ns: int) -> Excuse | None:
        """The step that kept a node from running, so that it comes to write so much later."""
        for one in self._struck:
            if one.verb in HELD_UP and node in one.targets and at <= one.end_ns:
                until_ns = one.end_ns + PERSIST_NS
                if one.begin_ns <= time_ns <= until_ns:
                    return Excuse(one.step, one.begin_ns, until_ns)
        return None


@check("A35 forgotten position", "positions read of the node that had them")
def forgotten_positions(case: Case, found: Findings) -> int:
    """A35: a node that was master all the time, through whatever kills, has kept what was
    committed to it, but for the commits of the last 6 s before it was killed.

    Judged where the nodes that answered a commit and a later question are known, and one.
    """
    evidence = case.evidence
    given = Given(case)
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    examined = 0
    for at_row, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(at_row)
        due = given.due(group, queue, row.node, time_ns)
        if due is None:
            continue
        examined += 1
        committed, at = due
        if offset < committed and not given.is_other(group, queue, at, time_ns, offset):
            name = evidence.queues.names[queue]
            text = f"{evidence.node(row)} told group {group} {offset} of {name.topic}/{name.queue},"
            text += f" after {committed} had been committed to it {(time_ns - at) / 1e9:.1f} s"
            text += " before"
            example = evidence.example(row, text, value=None, distance=committed - offset)
            excuse = given.excuse(group, queue, row.node, at, time_ns, offset)
            excuse = excuse or given.unwritten(evidence.node(row), at, time_ns)
            excuse = excuse or given.held_up_before_an_end(evidence.node(row), at, time_ns)
            found.add(example, excuse=excuse)
    if not examined:
        raise NotApplicable("no position was read of a node that had been given it long before")
    return examined


@check("S28 positions in images", "positions")
def kept_positions(case: Case, found: Findings) -> int:
    """S28: a kill or a power cut leaves of a master the table with what was committed to it until
    6 s before. Of a slave nothing is asked: its table is a copy that may be behind."""
    evidence = case.evidence
    if evidence.foreign:
        raise NotApplicable("only our own node promises it")
    given, groups = Given(case), evidence.record.consumer_groups
    numbers = {name: number for number, name in evidence.history.nodes.items()}
    examined = 0
    for image in evidence.images:
        number, time_ns = numbers.get(image.name, -1), image.taken.time_ns
        stored = {
            (groups.get(group, -1), queue): offset
            for _, queue, group, offset in stored_positions(evidence, [image])
        }
        for group, queue in given.places(number):
            name, offset = evidence.queues.names[queue], stored.get((group, queue), 0)
            due = given.due(group, queue, number, time_ns)
            if due is None or evidence.deleted(name.topic):
                continue  # tables do not tell a deleted topic from a later one of its name
            examined += 1
            committed, at = due
            if offset >= committed or given.is_other(group, queue, at, time_ns, offset):
                continue
            excuse = evidence.disks.may_differ(image, file=OFFSETS)
            # The cut that the image is of takes nothing off positions before the node starts again.
            excuse = excuse or given.excuse(group, queue, number, at, time_ns - 1, offset)
            since = max(at, time_ns - PERSIST_NS - RETRY_NS)
            excuse = excuse or given.unwritten(image.name, since, time_ns)
            excuse = excuse or given.held_up(image.name, at, time_ns)
            if excuse is None and evidence.record.backend != "sim":
                excuse = evidence.excuse("a machine that may be busy saves late", at, time_ns)
            found.add(
                f"{image.label} has {offset} for group {group} of {name.topic}/{name.queue}, where"
                f" {committed} had been committed to it {(time_ns - at) / 1e9:.1f} s before",
                excuse=excuse,
                node=image.name,
                topic=name.topic,
                queue=name.queue,
                time_ns=time_ns,
                distance=committed - offset,
            )
    if not examined:
        raise NotApplicable("no image is of a master that had been given a position long before")
    return examined
