"""Are sends answered whose messages are where they were promised to be? (chaos.md 2.8)"""

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
from rocketbed.chaos.checks.lineage import Lineage
from rocketbed.chaos.checks.logs import places_in
from rocketbed.chaos.checks.result import Excuse, Severity
from rocketbed.chaos.evidence.history import UNKNOWN, Function, Outcome, Row
from rocketbed.inspect.properties import SCHEDULE_TOPIC
from rocketbed.wire.command import ResponseCode

HINDERS = frozenset({"partition", "isolate", "link", "reset", "pause", "swizzle", "cpu", "disk"})
"""Steps that may keep an answer, or what it waits for, from who waits for it."""
SETTLE_NS = SECOND_NS
"""How long after them it may still be under way again."""
BACK_NS = 3 * SECOND_NS
"""How long after its start a node may not report what it holds."""
ANSWER_NS = SECOND_NS
"""So long after every node of its group has a message its send is answered."""
SAFE_NS = SECOND_NS // 2
"""And so long after it nobody answers any more that it is not safe: a time-out is a second."""
TRIPS = 2
"""Over a slow network so many trips sooner: the slave's report and the answer."""


@check("L11 answers owed", "sends", severity=Severity.LIVENESS)
def answers_owed(case: Case, found: Findings) -> int:
    """L11: a send is answered, under faults too, whose message every node of its group holds as
    promised a second before its client gives up; none is answered as not safe half a second after
    that, or sooner than a broker has to wait for its slaves and its disk.

    Judged in simulation, where each write and each sync was seen, under one lone master, of
    messages that are there at the end. Nodes that stay down in the calm phase are not waited for
    where the others are as many as was promised. Excused by a step that may have kept an answer of
    the group's nodes from a client, until a second after it, and by a node that was down.
    """
    evidence, losses = case.evidence, case.losses
    if evidence.record.backend != "sim" or evidence.foreign:
        raise NotApplicable("how long an answer takes is a machine's, which may be busy")
    rows = evidence.rows((Function.SEND, Function.TELL))
    examined = len(evidence.rows((Function.SEND, Function.TELL), Outcome.OK))
    seen: dict[int, int] = {}
    for process, at_ns in zip(rows.column("process"), rows.column("invoked_ns"), strict=True):
        seen[int(process)] = max(int(at_ns), seen.get(int(process), 0))
    trips_ns = TRIPS * evidence.record.facts.get("link_ns", 0)
    groups = [_Group(case, lineage) for lineage in losses.lineages]
    for row, number, end in (*_sent(case), *_told(case)):
        end_ns = seen[row.process] if row.returned_ns == UNKNOWN else row.returned_ns
        taken_ns, group = end_ns - row.invoked_ns, groups[number]
        is_weak = row.outcome == Outcome.WEAK
        by_ns = end_ns - (SAFE_NS if is_weak else ANSWER_NS) - trips_ns
        if row.status >= 0 and not is_weak:
            continue
        is_too_soon = is_weak and group.is_too_soon(row)
        if is_too_soon:
            owed = "was told to have waited too long for slaves or disk"
        elif by_ns > row.invoked_ns and group.is_everywhere(end, row.invoked_ns, by_ns):
            owed = "was at every node by then, and its send "
            owed += "was told that it is not safe" if is_weak else "got no answer"
        else:
            continue
        examined += 1
        is_sent = row.function == Function.SEND
        operation = row.operation if is_sent else None
        text = f"value {row.value} {owed} after {taken_ns / 1e9:.1f} s"
        example = evidence.example(row, text, operation=operation, time_ns=row.invoked_ns)
        excuses = group.of_producers if is_sent else group.of_tellers
        near = (one for one in excuses if one.begin_ns <= end_ns and row.invoked_ns <= one.end_ns)
        found.add(example, excuse=None if is_too_soon else next(near, None))
    if not examined:
        raise NotApplicable("nothing was sent that was answered, or that an answer is owed for")
    return examined


@dataclass
class _Group:
    """A group of brokers, and what was looked up of it once."""

    case: Case
    lineage: Lineage

    @cached_property
    def downs(self) -> list[tuple[str, int, int]]:
        """Nodes that were down, from when, until when."""
        found: list[tuple[str, int, int]] = []
        down: dict[str, int] = dict.fromkeys(self.lineage.nodes, 0)
        for event in self.case.evidence.events(Function.NODE, "exit", "start"):
            if event.what == "exit" and event.node in self.lineage.nodes:
                down[event.node] = event.time_ns
            elif event.node in down:
                found.append((event.node, down.pop(event.node), event.time_ns))
        return [*found, *((node, since_ns, ENDLESS) for node, since_ns in down.items())]

    @cached_property
    def led(self) -> list[int]:
        """When a node of it gave up its lead."""
        events = self.case.evidence.events(Function.NODE, "led")
        return [one.time_ns for one in events if one.node in self.lineage.nodes]

    @cached_property
    def patience(self) -> dict[int, float]:
        """By what it answers then, how long a node waits at least, ns; less where clocks drift."""
        evidence = self.case.evidence
        steps = map(step_of, evidence.events(Function.NEMESIS, "clock"))
        share = 0.5 if any("drift" in step.split() for step in steps) else 0.9
        told = evidence.record.facts.get("patience_ns", {})
        return {int(ResponseCode[name]): share * ns for name, ns in told.items()}

    @cached_property
    def of_producers(self) -> list[Excuse]:
        return list(self._hindrances("producer"))

    @cached_property
    def of_tellers(self) -> list[Excuse]:
        return list(self._hindrances("teller"))

    def is_too_soon(self, row: Row) -> bool:
        """Whether a broker cannot have waited as long as it says: one that leads no more gives
        up."""
        if row.returned_ns - row.invoked_ns >= self.patience.get(row.status, 0):
            return False
        return not any(row.invoked_ns <= time_ns <= row.returned_ns for time_ns in self.led)

    def is_everywhere(self, end: int, begin_ns: int, time_ns: int) -> bool:
        """Whether each node holds what its lone master has up to `end`, by then."""
        evidence, lineage = self.case.evidence, self.lineage
        if lineage.era(begin_ns) is not lineage.era(time_ns + ANSWER_NS):
            return False
        if any(begin <= time_ns and begin_ns <= until for begin, until, _ in evidence.splits):
            return False
        away = self._away(begin_ns, time_ns)
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

    def _away(self, begin_ns: int, time_ns: int) -> set[str]:
        """Nodes that were down in the calm phase from long before a time until after it."""
        return {
            node
            for node, since_ns, until_ns in self.downs
            if self._missed_ns(since_ns) <= begin_ns and time_ns <= until_ns
        }

    def _missed_ns(self, since_ns: int) -> int:
        """From when on a node that ended goes unmissed; never without a calm phase."""
        calm_ns = self.case.evidence.record.calm_ns
        return max(since_ns + HALF_OPEN_NS, calm_ns + BACK_NS) if calm_ns else ENDLESS

    def _hindrances(self, clients: str) -> Iterator[Excuse]:
        """What may have kept answers from clients: steps, and nodes that were down."""
        evidence, nodes = self.case.evidence, self.lineage.nodes
        exits = [one for one in evidence.events(Function.NODE, "exit") if one.node in nodes]
        # There its connections are a follower's, whose own one a node ends (seed 2200025).
        hinders = HINDERS | {"hostile"} if evidence.elects else HINDERS
        for one in faults(evidence):
            words = {*one.targets, *one.step.replace(",", " ").split()}
            of_clients = any(word.startswith(clients) for word in words)
            if of_clients or (words.intersection(nodes) and one.verb in hinders):
                yield Excuse(one.step, one.asked_ns, one.end_ns + SETTLE_NS)
            elif any(
                exit_.node in one.targets and one.asked_ns < exit_.time_ns <= one.begin_ns
                for exit_ in exits
            ):
                # A node that is being stopped goes on for a while, without its links.
                yield Excuse(one.step, one.asked_ns, one.begin_ns + SETTLE_NS)
        started: dict[str, int] = {}
        for event in evidence.events(Function.NODE, "start", "recovered"):
            if event.what == "start" and event.node in nodes:
                started[event.node] = event.time_ns
            elif event.node in started:
                cause = f"{event.node} looked through its log"
                yield Excuse(cause, started.pop(event.node), event.time_ns + SETTLE_NS)
        for node, since_ns, until_ns in self.downs:
            cause, missed_ns = f"{node} was down", self._missed_ns(since_ns)
            until = min(until_ns, missed_ns, evidence.record.end_ns)
            yield Excuse(cause, since_ns, until + BACK_NS)
            if missed_ns < until_ns < ENDLESS:
                yield Excuse(cause, until_ns, until_ns + BACK_NS)


def _sent(case: Case) -> Iterator[tuple[Row, int, int]]:
    """Sends that nobody answered, or not as safe, and whose message is there, its group, and where
    it ends."""
    evidence, losses, stored = case.evidence, case.losses, case.evidence.stored
    sends = evidence.sends
    kinds, outcomes = sends.column("function"), sends.column("outcome")
    places = passes.lookup(sends.column("value"), stored.values, stored.keys, -1)
    columns = (map(int, column) for column in (kinds, outcomes, places))
    for number, (kind, outcome, key) in enumerate(zip(*columns, strict=True)):
        if kind == Function.SEND and outcome in (Outcome.INFO, Outcome.WEAK) and key >= 0:
            end = losses.sent[number].end
            if end is not None:
                yield sends.row(number), evidence.queues.names[key >> OFFSET_BITS].group, end


def _told(case: Case) -> Iterator[tuple[Row, int, int]]:
    """The same of what was sent to listeners, where it stands first; ends are those of records, so
    whoever has the first byte has it all."""
    evidence = case.evidence
    rows = list(evidence.rows((Function.TELL,), Outcome.INFO, Outcome.WEAK).each())
    topics = sorted({SCHEDULE_TOPIC, *map(evidence.history.topic, rows)})
    for log in evidence.finals() if rows else ():
        places = places_in(log.directory, topics)
        for row in rows:
            if row.value in places:
                first = min(place.physical for place in places[row.value])
                yield row, log.group, first + 1
