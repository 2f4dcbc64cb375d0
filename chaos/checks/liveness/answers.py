"""Sends are answered once their messages are replicated as promised (chaos.md 2.8)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS, faults
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.events import step_of
from rocketbed.chaos.checks.evidence import SECOND_NS
from rocketbed.chaos.checks.keys import OFFSET_BITS
from rocketbed.chaos.checks.logs import places_in
from rocketbed.chaos.checks.loss.lineage import Lineage
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import UNKNOWN, Function, Outcome, Row
from rocketbed.inspect.properties import SCHEDULE_TOPIC
from rocketbed.wire.command import ResponseCode

HINDERS = frozenset({"partition", "isolate", "link", "reset", "pause", "swizzle", "cpu", "disk"})
"""Steps that may keep an answer, or what it waits for, from arriving."""
SETTLE_NS = SECOND_NS
"""Time after such a step in which an answer may still be travelling."""
BACK_NS = 3 * SECOND_NS
"""Time after its start in which a node may not yet report what it holds."""
ANSWER_NS = SECOND_NS
"""A send must be answered within this time after every node of its group holds the message."""
SAFE_NS = SECOND_NS // 2
"""From this long after that, "not safe" is no acceptable answer; a time-out is a second."""
TRIPS = 2
"""On a slow network, additional round trips: the slave's acknowledgement and the answer."""


@check("sends-answered", "sends", severity=Severity.LIVENESS)
def unanswered_sends(case: Case, findings: Findings) -> int:
    """A send is answered, even under faults, if every node of its group holds the message as
    promised a second before its client gives up.

    No send is answered as not safe half a second after that, or sooner than a broker has to wait
    for its slaves and its disk; in groups that elect none is, since clients return these codes like
    a success and the next leader may truncate the message. Judged in simulation, where each write
    and sync was observed, while there was one master, for messages that are stored at the end.
    Nodes that stay down in the recovery phase are not waited for if the others are as many as was
    promised. Excused by a step that may have kept an answer from a client, until a second after it,
    and by a node that was down.
    """
    evidence, losses = case.evidence, case.losses
    if evidence.record.backend != "sim" or evidence.foreign:
        raise NotApplicable("how long an answer takes is a machine's, which may be busy")
    rows = evidence.rows((Function.SEND, Function.TELL))
    examined = len(evidence.rows((Function.SEND, Function.TELL), Outcome.OK))
    last_seen_ns: dict[int, int] = {}
    for process, at_ns in zip(rows.column("process"), rows.column("invoked_ns"), strict=True):
        last_seen_ns[int(process)] = max(int(at_ns), last_seen_ns.get(int(process), 0))
    trips_ns = TRIPS * evidence.record.facts.get("link_ns", 0)
    groups = [_Group(case, lineage) for lineage in losses.lineages]
    for row, number, end in (*_unsafe_sends(case), *_unsafe_listener_sends(case)):
        end_ns = last_seen_ns[row.process] if row.returned_ns == UNKNOWN else row.returned_ns
        elapsed_ns, group = end_ns - row.invoked_ns, groups[number]
        is_weak = row.outcome == Outcome.WEAK
        by_ns = end_ns - (SAFE_NS if is_weak else ANSWER_NS) - trips_ns
        if row.status >= 0 and not is_weak:
            continue
        is_wrong = is_weak and (evidence.elects or group.is_too_soon(row))
        if is_wrong:
            verdict = "was said to have waited too long for slaves or disk"
        elif by_ns > row.invoked_ns and group.is_held_by_all(end, row.invoked_ns, by_ns):
            verdict = "was at every node by then, and its send "
            verdict += "was told that it is not safe" if is_weak else "got no answer"
        else:
            continue
        examined += 1
        is_sent = row.function == Function.SEND
        operation = row.operation if is_sent else None
        text = f"value {row.value} {verdict} after {elapsed_ns / 1e9:.1f} s"
        example = evidence.example(row, text, operation=operation, time_ns=row.invoked_ns)
        excuses = group.hindrances_of_producers if is_sent else group.hindrances_of_tellers
        nearby = (
            excuse
            for excuse in excuses
            if excuse.begin_ns <= end_ns and row.invoked_ns <= excuse.end_ns
        )
        findings.add(example, excuse=None if is_wrong else next(nearby, None))
    if not examined:
        raise NotApplicable("nothing was sent that was answered, or that an answer is owed for")
    return examined


@dataclass
class _Group:
    """A group of brokers, with facts about it that are computed once."""

    case: Case
    lineage: Lineage

    @cached_property
    def downs(self) -> list[tuple[str, int, int]]:
        """Periods in which nodes were down: node, begin, end."""
        periods: list[tuple[str, int, int]] = []
        down: dict[str, int] = dict.fromkeys(self.lineage.nodes, 0)
        for event in self.case.evidence.events(Function.NODE, "exit", "start"):
            if event.kind == "exit" and event.node in self.lineage.nodes:
                down[event.node] = event.time_ns
            elif event.node in down:
                periods.append((event.node, down.pop(event.node), event.time_ns))
        return [*periods, *((node, since_ns, ENDLESS) for node, since_ns in down.items())]

    @cached_property
    def patience(self) -> dict[int, float]:
        """Least time that a node waits before it gives an answer, ns, by response code; less if
        clocks drift."""
        evidence = self.case.evidence
        steps = map(step_of, evidence.events(Function.NEMESIS, "clock"))
        share = 0.5 if any("drift" in step.split() for step in steps) else 0.9
        patience_ns = evidence.record.facts.get("patience_ns", {})
        return {int(ResponseCode[name]): share * ns for name, ns in patience_ns.items()}

    @cached_property
    def hindrances_of_producers(self) -> list[Excuse]:
        return list(self._hindrances("producer"))

    @cached_property
    def hindrances_of_tellers(self) -> list[Excuse]:
        return list(self._hindrances("teller"))

    def is_too_soon(self, row: Row) -> bool:
        """True if a broker cannot have waited as long as its answer implies."""
        return row.returned_ns - row.invoked_ns < self.patience.get(row.status, 0)

    def is_held_by_all(self, end: int, begin_ns: int, time_ns: int) -> bool:
        """True if at `time_ns` each node holds what its only master has up to `end`."""
        evidence, lineage = self.case.evidence, self.lineage
        if lineage.era(begin_ns) is not lineage.era(time_ns + ANSWER_NS):
            return False
        if any(begin <= time_ns and begin_ns <= until for begin, until, _ in evidence.splits):
            return False
        away = self._down_in_recovery(begin_ns, time_ns)
        if away and len(lineage.nodes) - len(away) < evidence.record.promise.copies:
            return False
        for node in lineage.nodes:
            if node in away:
                continue
            ends = lineage.ends[node]
            level = ends.at(time_ns).durable if evidence.flushes else ends.at(time_ns).written
            if not ends.complete or lineage.held(node, time_ns, level) < end:
                return False
        return True

    def _down_in_recovery(self, begin_ns: int, time_ns: int) -> set[str]:
        """Return the nodes that were down in the recovery phase, from long before a time until
        after it."""
        return {
            node
            for node, since_ns, until_ns in self.downs
            if self._written_off_ns(since_ns) <= begin_ns and time_ns <= until_ns
        }

    def _written_off_ns(self, since_ns: int) -> int:
        """Return the time from which a node that ended is no longer waited for; never without a
        recovery phase."""
        recovery_ns = self.case.evidence.record.recovery_ns
        return max(since_ns + HALF_OPEN_NS, recovery_ns + BACK_NS) if recovery_ns else ENDLESS

    def _hindrances(self, clients: str) -> Iterator[Excuse]:
        """Yield what may have kept answers from clients: steps, and nodes that were down."""
        evidence, nodes = self.case.evidence, self.lineage.nodes
        exits = [event for event in evidence.events(Function.NODE, "exit") if event.node in nodes]
        # With elections a hostile peer connects as a follower, and a node then closes the real
        # follower's connection.
        hinders = HINDERS | {"hostile"} if evidence.elects else HINDERS
        for fault in faults(evidence):
            words = {*fault.targets, *fault.step.replace(",", " ").split()}
            of_clients = any(word.startswith(clients) for word in words)
            if of_clients or (words.intersection(nodes) and fault.verb in hinders):
                yield Excuse(fault.step, fault.requested_ns, fault.end_ns + SETTLE_NS)
            elif any(
                exit_.node in fault.targets and fault.requested_ns < exit_.time_ns <= fault.begin_ns
                for exit_ in exits
            ):
                # A node that is being stopped runs on for a while, without its links.
                yield Excuse(fault.step, fault.requested_ns, fault.begin_ns + SETTLE_NS)
        recovering: dict[str, int] = {}
        for event in evidence.events(Function.NODE, "start", "recovered"):
            if event.kind == "start" and event.node in nodes:
                recovering[event.node] = event.time_ns
            elif event.node in recovering:
                cause = f"{event.node} looked through its log"
                yield Excuse(cause, recovering.pop(event.node), event.time_ns + SETTLE_NS)
        for node, since_ns, until_ns in self.downs:
            cause, missed_ns = f"{node} was down", self._written_off_ns(since_ns)
            until = min(until_ns, missed_ns, evidence.record.end_ns)
            yield Excuse(cause, since_ns, until + BACK_NS)
            if missed_ns < until_ns < ENDLESS:
                yield Excuse(cause, until_ns, until_ns + BACK_NS)


def _unsafe_sends(case: Case) -> Iterator[tuple[Row, int, int]]:
    """Yield (send, group, log end) for each stored message whose send got no answer, or the answer
    that it is not safe."""
    evidence, losses, stored = case.evidence, case.losses, case.evidence.stored
    sends = evidence.sends
    kinds, outcomes = sends.column("function"), sends.column("outcome")
    places = passes.lookup(sends.column("value"), stored.values, stored.keys, -1)
    columns = (map(int, column) for column in (kinds, outcomes, places))
    for number, (kind, outcome, key) in enumerate(zip(*columns, strict=True)):
        if kind == Function.SEND and outcome in (Outcome.INFO, Outcome.WEAK) and key >= 0:
            end = losses.attempts[number].end
            if end is not None:
                yield sends.row(number), evidence.queues.names[key >> OFFSET_BITS].group, end


def _unsafe_listener_sends(case: Case) -> Iterator[tuple[Row, int, int]]:
    """Yield the same for sends to listeners, with the first place of the message.

    Ends are start offsets plus one: a node that has the first byte of a record has all of it.
    """
    evidence = case.evidence
    rows = list(evidence.rows((Function.TELL,), Outcome.INFO, Outcome.WEAK).each())
    topics = sorted({SCHEDULE_TOPIC, *map(evidence.history.topic, rows)})
    for log in evidence.finals() if rows else ():
        places = places_in(log.directory, topics)
        for row in rows:
            if row.value in places:
                first = min(place.physical for place in places[row.value])
                yield row, log.group, first + 1
