"""A master keeps the positions committed to it through any sequence of kills (chaos.md 2.5).

`forgotten-offset` examines the positions it reports, `positions-in-images` its table in the images
of kills and power cuts.
"""

from bisect import bisect_right
from collections.abc import Iterator

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import disk_fault, faults
from rocketbed.chaos.checks.groups.positions import (
    PERSIST_NS,
    commits_of,
    concurrent_reader,
    kept_commits,
    positions,
    process_spans,
    rewind_times,
    stored_positions,
    violent_ends,
)
from rocketbed.chaos.checks.loss.lineage import PROMOTE, WIPE
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome

OFFSETS = "consumerOffset.json"
RETRY_NS = 1_000_000_000
"""Interval after which a node retries a failed write of a table."""
HELD_UP = frozenset({"pause", "cpu"})
"""Steps under which a node writes its tables late."""


class RequiredPositions:
    """Positions that were committed to the nodes of a run as masters, and that they have to
    keep."""

    def __init__(self, case: Case) -> None:
        evidence = case.evidence
        self._case = case
        self._rewinds = rewind_times(evidence)
        self._faults = faults(evidence)
        self._commits, self._holders = commits_of(evidence), process_spans(evidence)
        self._committed_offsets = {
            place: {commit.offset for commit in commits} for place, commits in self._commits.items()
        }
        self._ends = violent_ends(evidence, case.losses)
        self._kept_commits = kept_commits(evidence, self._ends, self._rewinds, by_node=True)

    def places(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (group, queue) of each position that a node, by its number, had to keep at some
        time."""
        yield from sorted(
            {(group, queue) for group, queue, _, by in self._kept_commits if by == number}
        )

    def required(self, group: int, queue: int, number: int, time_ns: int) -> tuple[int, int] | None:
        """Return the highest position that a node must have at `time_ns`, and when it was
        committed.

        None if it need not have any.
        """
        evidence, losses = self._case.evidence, self._case.losses
        node = evidence.history.nodes.get(number, "")
        place = group, queue, bisect_right(self._rewinds[group, queue], time_ns), number
        times, best = self._kept_commits[place]
        last = bisect_right(times, time_ns) - 1
        if node not in losses.ends or last < 0:
            return None
        committed, at = best[last]
        lineage = losses.lineages[evidence.group_of(number)]
        if any(lineage.era(moment).master != node for moment in (at, time_ns)):
            return None  # its master's table replaces a slave's
        if any(begin <= time_ns and at <= end for begin, end, _ in evidence.splits):
            # With two masters, neither one nor its successor must have the other one's positions.
            return None
        changes = [change for change in lineage.changes if at < change.time_ns <= time_ns]
        if any(change.kind == (WIPE if change.node == node else PROMOTE) for change in changes):
            return None
        return committed, at

    def may_be_newer(self, group: int, queue: int, at: int, time_ns: int, offset: int) -> bool:
        """True if `offset` or less was committed after `at` and before `time_ns`: a member may have
        begun with a position that a slave reported."""
        return any(
            commit.offset <= offset and commit.begun_ns <= time_ns and at < commit.ended_ns
            for commit in self._commits[group, queue]
        )

    def excuse(
        self, group: int, queue: int, number: int, at: int, time_ns: int, offset: int
    ) -> Excuse | None:
        """Return why a node may report `offset` at `time_ns` and not what was committed to it at
        `at`.

        If two members read one queue, each pull of one overwrites the other's position.
        """
        evidence, losses = self._case.evidence, self._case.losses
        excuse = losses.loss_between(evidence.group_of(number), at, time_ns)
        excuse = excuse or evidence.disks.damaged_by(evidence.history.nodes[number], time_ns)
        for commit in self._commits[group, queue] if excuse is None else ():
            if commit.ended_ns == at and offset in self._committed_offsets[group, queue]:
                excuse = concurrent_reader(self._holders[group, queue], commit)
        return excuse

    def unwritten(self, node: str, at: int, time_ns: int) -> Excuse | None:
        """Return the step that kept a node from writing its tables between two times."""
        return disk_fault(self._faults, node, at, time_ns)

    def held_up_before_an_end(self, node: str, at: int, time_ns: int) -> Excuse | None:
        """Return the step that held up a node which was then killed, between two times."""
        ends = self._ends[self._case.evidence.group_of_name(node)]
        between = (end for end in ends if at < end <= time_ns)
        return next(filter(None, (self.held_up(node, at, end) for end in between)), None)

    def held_up(self, node: str, at: int, time_ns: int) -> Excuse | None:
        """Return the step that kept a node from running, so that it writes its tables that much
        later."""
        for fault in self._faults:
            if fault.verb in HELD_UP and node in fault.targets and at <= fault.end_ns:
                until_ns = fault.end_ns + PERSIST_NS
                if fault.begin_ns <= time_ns <= until_ns:
                    return Excuse(fault.step, fault.begin_ns, until_ns)
        return None


@check("forgotten-offset", "positions read of the node that had them")
def forgotten_positions(case: Case, findings: Findings) -> int:
    """A node that was master all the time keeps the positions committed to it through any
    kills, except commits of the last 6 s before a kill.

    Judged if one and the same known node answered both the commit and the later query.
    """
    evidence = case.evidence
    required_positions = RequiredPositions(case)
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    examined = 0
    for at_row, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(at_row)
        required = required_positions.required(group, queue, row.node, time_ns)
        if required is None:
            continue
        examined += 1
        committed, at = required
        if offset < committed and not required_positions.may_be_newer(
            group, queue, at, time_ns, offset
        ):
            name = evidence.queues.names[queue]
            text = f"{evidence.node(row)} told group {group} {offset} of {name.topic}/{name.queue},"
            text += f" after {committed} had been committed to it {(time_ns - at) / 1e9:.1f} s"
            text += " before"
            example = evidence.example(row, text, value=None, distance=committed - offset)
            excuse = required_positions.excuse(group, queue, row.node, at, time_ns, offset)
            excuse = excuse or required_positions.unwritten(evidence.node(row), at, time_ns)
            excuse = excuse or required_positions.held_up_before_an_end(
                evidence.node(row), at, time_ns
            )
            findings.add(example, excuse=excuse)
    if not examined:
        raise NotApplicable("no position was read of a node that had been given it long before")
    return examined


@check("positions-in-images", "positions")
def positions_in_images(case: Case, findings: Findings) -> int:
    """A kill or power cut leaves the master a table with all that was committed up to 6 s
    before.

    Slaves are not judged: their tables are copies that may lag.
    """
    evidence = case.evidence
    if evidence.foreign:
        raise NotApplicable("only our own node promises it")
    required_positions, groups = RequiredPositions(case), evidence.record.consumer_groups
    numbers = {name: number for number, name in evidence.history.nodes.items()}
    examined = 0
    for image in evidence.images:
        number, time_ns = numbers.get(image.name, -1), image.image_record.time_ns
        stored = {
            (groups.get(group, -1), queue): offset
            for _, queue, group, offset in stored_positions(evidence, [image])
        }
        for group, queue in required_positions.places(number):
            name, offset = evidence.queues.names[queue], stored.get((group, queue), 0)
            required = required_positions.required(group, queue, number, time_ns)
            if required is None or evidence.deleted(name.topic):
                continue  # a table does not tell a deleted topic from a later namesake
            examined += 1
            committed, at = required
            if offset >= committed or required_positions.may_be_newer(
                group, queue, at, time_ns, offset
            ):
                continue
            excuse = evidence.disks.may_differ(image, file=OFFSETS)
            # Positions lose what the image's own power cut took only when the node starts again.
            excuse = excuse or required_positions.excuse(
                group, queue, number, at, time_ns - 1, offset
            )
            since = max(at, time_ns - PERSIST_NS - RETRY_NS)
            excuse = excuse or required_positions.unwritten(image.name, since, time_ns)
            excuse = excuse or required_positions.held_up(image.name, at, time_ns)
            if excuse is None and evidence.record.backend != "sim":
                excuse = evidence.excuse("a machine that may be busy saves late", at, time_ns)
            findings.add(
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
