"""What masters tell groups of their positions: just what they were given, and none beyond the end.

(chaos.md 2.5)
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.events import targets_of
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.positions import Commit, commits_of, holders, other_member, positions
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome

UNDER_WAY_NS = 15_000_000_000
"""A request that nobody answered has reached its node by then or never will: longer than steps
that hold a connection up."""


@check("A36 position without a message", "positions read of masters")
def positions_beyond(case: Case, found: Findings) -> int:
    """A36: a master tells no position beyond its queue's end, unless somebody committed it since
    the master started. What a loss took is taken off positions too, or their groups would never be
    given what gets the same queue offsets next (T20).

    The end is what the same process told in the next answer to a pull, or to a question for it. Not
    judged where a member lived through the master's start: each of its pulls says again where it
    stood.
    """
    evidence = case.evidence
    if evidence.foreign:
        raise NotApplicable("only our own node promises it")
    lives, given, members = _lives(evidence), commits_of(evidence), _members(evidence)
    ends: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    told = evidence.rows((Function.PULL, Function.BOUNDS), Outcome.OK)
    columns = (told.column(name) for name in ("node", "invoked_ns", "value"))
    for queue, by, at, upto in zip(evidence.queue_numbers(told), *columns, strict=True):
        who = evidence.history.nodes.get(int(by), "")
        ends[who, int(queue)].append((int(at), int(upto)))
    for one in ends.values():
        one.sort()
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
        since = (
            one.offset
            for one in given[group, queue]
            if one.begun_ns < time_ns and (life <= one.begun_ns or life <= one.ended_ns < ENDLESS)
        )
        if 0 <= end < offset and max(since, default=0) < offset:
            name = evidence.queues.names[queue]
            text = f"{node} told group {group} {offset} of {name.topic}/{name.queue}, which ended"
            text += f" at {end}, and nobody committed that since it started"
            example = evidence.example(row, text, value=None, distance=offset - end)
            found.add(example, excuse=evidence.disks.damaged_by(node, time_ns))
    if not examined:
        raise NotApplicable("no position was read of a master that told the end of the queue later")
    return examined


@check("A37 other position", "positions read after a commit")
def other_positions(case: Case, found: Findings) -> int:
    """A37: a master that was given a position, and has led on since, tells just that one. Who leads
    again after another one has that one's positions (seed 1270216).

    Where two members read one queue for a while, as they had learned of its topic's queues at
    different times, each of the other's pulls says again where that one stands. RocketMQ handles
    pulls and commits in threads of their own: a pull that says an earlier position may come to
    count behind the commit that was sent after it (wire.md 5.1).
    """
    evidence = case.evidence
    lives, given, held = _lives(evidence), commits_of(evidence), holders(evidence)
    reads = evidence.rows((Function.READ_OFFSET,), Outcome.OK)
    latest: dict[tuple[int, int, str], list[Commit]] = {}
    examined = 0
    for number, (group, queue, offset, time_ns) in enumerate(positions(evidence, reads)):
        row = reads.row(number)
        node, commits = evidence.node(row), given[group, queue]
        if (group, queue, node) not in latest:
            latest[group, queue, node] = _latest(commits, partial(lives, node))
        before = bisect_left(commits, time_ns, key=lambda one: one.begun_ns)
        if not before or lives(node, commits[before - 1].begun_ns) != lives(node, time_ns):
            continue
        last = latest[group, queue, node][before - 1]
        if _end_ns(last) > row.invoked_ns or last.node != node:
            continue  # another one may have come in between
        if not all(_is_lone_master(case, node, at) for at in (last.begun_ns, time_ns)):
            continue
        lineage = case.losses.lineages[evidence.group_of(row.node)]
        if lineage.era(last.begun_ns).start_ns != lineage.era(time_ns).start_ns:
            continue
        examined += 1
        at_once = (one for one in commits[:before] if _end_ns(one) >= last.begun_ns)
        if offset not in {one.offset for one in at_once if one.begun_ns <= _end_ns(last)}:
            name = evidence.queues.names[queue]
            text = f"{node} told group {group} {offset} of {name.topic}/{name.queue}, after it had"
            text += f" been given {last.offset}"
            example = evidence.example(row, text, value=None, distance=abs(offset - last.offset))
            excuse = other_member(held[group, queue], last)
            if excuse is None and evidence.foreign:
                excuse = _pulled_with(commits[:before], last, offset)
            found.add(example, excuse=excuse)
    if not examined:
        raise NotApplicable("no position was read after it had been committed")
    return examined


def _members(evidence: Evidence) -> dict[int, dict[int, tuple[int, int]]]:
    """By group, each of its processes with the first and the last time that it may have asked:
    until a while after it was seen last, or consumers were killed (seed 1270762)."""
    found: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    rows = evidence.rows((Function.DELIVER, Function.READ_OFFSET, Function.COMMIT_OFFSET))
    columns = (rows.column(name) for name in ("operation", "process", "invoked_ns"))
    for group, process, time_ns in zip(*columns, strict=True):
        first, last = found[int(group)].get(int(process), (int(time_ns), 0))
        found[int(group)][int(process)] = min(first, int(time_ns)), max(last, int(time_ns))
    kills = [
        event.time_ns
        for event in evidence.events(Function.NEMESIS, "kill")
        if any(name.startswith("consumer-") for name in targets_of(event))
    ]
    for members in found.values():
        for process, (first, last) in members.items():
            killed = bisect_right(kills, last)
            until_ns = kills[killed] if killed < len(kills) else ENDLESS
            members[process] = first, min(until_ns, last + UNDER_WAY_NS)
    return found


def _pulled_with(commits: Iterable[Commit], last: Commit, offset: int) -> Excuse | None:
    """The commit before the last one that a pull of the same process may have said again."""
    for one in commits:
        is_earlier = last.begun_ns - UNDER_WAY_NS <= one.begun_ns < last.begun_ns
        if is_earlier and (one.process, one.node, one.offset) == (last.process, last.node, offset):
            cause = f"process {one.process} may have said so again with a pull"
            return Excuse(cause, one.begun_ns, last.begun_ns + UNDER_WAY_NS)
    return None


def _latest(commits: Iterable[Commit], life: Callable[[int], int]) -> list[Commit]:
    """Beside each commit the one that was answered last of those of the same process, up to it."""
    found: list[Commit] = []
    for one in commits:
        best = found[-1] if found else one
        is_same = life(best.begun_ns) == life(one.begun_ns)
        found.append(best if is_same and _end_ns(best) > _end_ns(one) else one)
    return found


def _end_ns(commit: Commit) -> int:
    """Until when it may come to count."""
    return min(commit.ended_ns, commit.begun_ns + UNDER_WAY_NS)


def _lives(evidence: Evidence) -> Callable[[str, int], int]:
    """When the process of a node at a time was started; -1: not known."""
    starts: dict[str, list[int]] = defaultdict(list)
    for event in evidence.events(Function.NODE, "start"):
        starts[event.node].append(event.time_ns)

    def life(node: str, time_ns: int) -> int:
        own = starts[node]
        at = bisect_right(own, time_ns)
        return own[at - 1] if at else -1

    return life


def _is_lone_master(case: Case, node: str, time_ns: int) -> bool:
    """Whether a node was master, and nobody else beside it."""
    group = case.evidence.group_of_name(node)
    if group < 0 or case.losses.lineages[group].era(time_ns).master != node:
        return False
    return not any(begin <= time_ns <= end for begin, end, _ in case.evidence.splits)
