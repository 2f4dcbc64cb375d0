"""Positions that masters report to groups: exactly those committed, and none beyond the queue's end
(chaos.md 2.5)."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.events import targets_of
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.groups.positions import (
    Commit,
    commits_of,
    concurrent_reader,
    positions,
    process_spans,
)
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome

UNDER_WAY_NS = 15_000_000_000
"""By this time an unanswered request has reached its node or never will: longer than any step that
holds up a connection."""


@check("offset-without-message", "positions read of masters")
def positions_beyond(case: Case, findings: Findings) -> int:
    """A master reports no position beyond its queue's end, unless it was committed since the
    master started.

    What a loss took is taken off positions too; else their groups would never get the messages that
    receive the same queue offsets next. The end is what the same process reported in the next
    answer to a pull or a bounds query. Not judged if a member lived through the master's start:
    each of its pulls reports its position again.
    """
    evidence = case.evidence
    if evidence.foreign:
        raise NotApplicable("only our own node promises it")
    lives, commits, members = _lives(evidence), commits_of(evidence), _members(evidence)
    ends: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    answers = evidence.rows((Function.PULL, Function.BOUNDS), Outcome.OK)
    columns = (answers.column(name) for name in ("node", "invoked_ns", "value"))
    for queue, node_id, at, end in zip(evidence.queue_numbers(answers), *columns, strict=True):
        node = evidence.history.nodes.get(int(node_id), "")
        ends[node, int(queue)].append((int(at), int(end)))
    for answers_of_queue in ends.values():
        answers_of_queue.sort()
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    examined = 0
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(number)
        node = evidence.node(row)
        later = ends[node, queue]
        after = bisect_left(later, (time_ns, 0))
        life = lives(node, time_ns)
        if after == len(later) or lives(node, later[after][0]) != life:
            continue
        if any(first < life <= last for first, last in members[group].values()):
            continue
        if not _is_lone_master(case, node, time_ns):
            continue
        examined += 1
        _, end = later[after]
        recent = (
            commit.offset
            for commit in commits[group, queue]
            if commit.begun_ns < time_ns
            and (life <= commit.begun_ns or life <= commit.ended_ns < ENDLESS)
        )
        if 0 <= end < offset and max(recent, default=0) < offset:
            name = evidence.queues.names[queue]
            text = f"{node} told group {group} {offset} of {name.topic}/{name.queue}, which ended"
            text += f" at {end}, and nobody committed that since it started"
            example = evidence.example(row, text, value=None, distance=offset - end)
            findings.add(example, excuse=evidence.disks.damaged_by(node, time_ns))
    if not examined:
        raise NotApplicable("no position was read of a master that told the end of the queue later")
    return examined


@check("wrong-reported-offset", "positions read after a commit")
def other_positions(case: Case, findings: Findings) -> int:
    """A master reports exactly the position last committed to it, if it has led since.

    A node that leads again after another one has the other one's positions. While two members read
    one queue, as they had learned of the topic's queues at different times, each pull of one
    overwrites the other's position. RocketMQ handles pulls and commits in separate threads: a pull
    with an earlier position may count after a commit that was sent later (wire.md 5.1).
    """
    evidence = case.evidence
    lives, all_commits, held = _lives(evidence), commits_of(evidence), process_spans(evidence)
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    latest: dict[tuple[int, int, str], list[Commit]] = {}
    examined = 0
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(number)
        node, commits = evidence.node(row), all_commits[group, queue]
        if (group, queue, node) not in latest:
            latest[group, queue, node] = _latest(commits, partial(lives, node))
        before = bisect_left(commits, time_ns, key=lambda commit: commit.begun_ns)
        if not before or lives(node, commits[before - 1].begun_ns) != lives(node, time_ns):
            continue
        last = latest[group, queue, node][before - 1]
        if _settled_ns(last) > row.invoked_ns or last.node != node:
            continue  # Another member may have committed in between.
        if not all(_is_lone_master(case, node, at) for at in (last.begun_ns, time_ns)):
            continue
        lineage = case.losses.lineages[evidence.group_of(row.node)]
        if lineage.era(last.begun_ns).start_ns != lineage.era(time_ns).start_ns:
            continue
        examined += 1
        concurrent = (commit for commit in commits[:before] if _settled_ns(commit) >= last.begun_ns)
        if offset not in {
            commit.offset for commit in concurrent if commit.begun_ns <= _settled_ns(last)
        }:
            name = evidence.queues.names[queue]
            text = f"{node} told group {group} {offset} of {name.topic}/{name.queue}, after it had"
            text += f" been given {last.offset}"
            example = evidence.example(row, text, value=None, distance=abs(offset - last.offset))
            excuse = concurrent_reader(held[group, queue], last)
            if excuse is None and evidence.foreign:
                excuse = _repeated_by_pull(commits[:before], last, offset)
            findings.add(example, excuse=excuse)
    if not examined:
        raise NotApplicable("no position was read after it had been committed")
    return examined


def _members(evidence: Evidence) -> dict[int, dict[int, tuple[int, int]]]:
    """Return by group the first and last time at which each of its processes may have sent a
    request.

    The last is a while after the process was last seen, or the next kill of consumers.
    """
    times: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    rows = evidence.rows((Function.DELIVER, Function.READ_OFFSET, Function.COMMIT_OFFSET))
    columns = (rows.column(name) for name in ("operation", "process", "invoked_ns"))
    for group, process, time_ns in zip(*columns, strict=True):
        first, last = times[int(group)].get(int(process), (int(time_ns), 0))
        times[int(group)][int(process)] = min(first, int(time_ns)), max(last, int(time_ns))
    kills = [
        event.time_ns
        for event in evidence.events(Function.NEMESIS, "kill")
        if any(name.startswith("consumer-") for name in targets_of(event))
    ]
    for members in times.values():
        for process, (first, last) in members.items():
            killed = bisect_right(kills, last)
            until_ns = kills[killed] if killed < len(kills) else ENDLESS
            members[process] = first, min(until_ns, last + UNDER_WAY_NS)
    return times


def _repeated_by_pull(commits: Iterable[Commit], last: Commit, offset: int) -> Excuse | None:
    """Return the commit before the last one that a pull of the same process may have repeated."""
    for commit in commits:
        is_earlier = last.begun_ns - UNDER_WAY_NS <= commit.begun_ns < last.begun_ns
        if is_earlier and (commit.process, commit.node, commit.offset) == (
            last.process,
            last.node,
            offset,
        ):
            cause = f"process {commit.process} may have said so again with a pull"
            return Excuse(cause, commit.begun_ns, last.begun_ns + UNDER_WAY_NS)
    return None


def _latest(commits: Iterable[Commit], life: Callable[[int], int]) -> list[Commit]:
    """Pair each commit with the latest commit of the same process answered up to then."""
    latest: list[Commit] = []
    for commit in commits:
        previous = latest[-1] if latest else commit
        is_same = life(previous.begun_ns) == life(commit.begun_ns)
        latest.append(
            previous if is_same and _settled_ns(previous) > _settled_ns(commit) else commit
        )
    return latest


def _settled_ns(commit: Commit) -> int:
    """Time from which a commit no longer changes the position."""
    return min(commit.ended_ns, commit.begun_ns + UNDER_WAY_NS)


def _lives(evidence: Evidence) -> Callable[[str, int], int]:
    """Return a function from node and time to the start time of the node's process; -1 if
    unknown."""
    starts: dict[str, list[int]] = defaultdict(list)
    for event in evidence.events(Function.NODE, "start"):
        starts[event.node].append(event.time_ns)

    def life(node: str, time_ns: int) -> int:
        times = starts[node]
        at = bisect_right(times, time_ns)
        return times[at - 1] if at else -1

    return life


def _is_lone_master(case: Case, node: str, time_ns: int) -> bool:
    """True if a node was the only master of its group."""
    group = case.evidence.group_of_name(node)
    if group < 0 or case.losses.lineages[group].era(time_ns).master != node:
        return False
    return not any(begin <= time_ns <= end for begin, end, _ in case.evidence.splits)
