"""Are sends answered whose messages are where they were promised to be? (chaos.md 2.8)"""

from collections.abc import Iterator

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checkers.context import faults
from rocketbed.chaos.checkers.evidence import SECOND_NS
from rocketbed.chaos.checkers.keys import OFFSET_BITS
from rocketbed.chaos.checkers.lineage import Lineage
from rocketbed.chaos.checkers.logs import places_in
from rocketbed.chaos.checkers.result import Excuse, Severity
from rocketbed.chaos.history import UNKNOWN, Function, Outcome, Row
from rocketbed.inspect.properties import SCHEDULE_TOPIC

HINDERS = frozenset({"partition", "isolate", "link", "reset", "pause", "swizzle", "cpu", "disk"})
"""Steps that may keep an answer, or what it waits for, from who waits for it."""
SETTLE_NS = SECOND_NS
"""How long after them it may still be under way again."""
BACK_NS = 3 * SECOND_NS
"""How long after its start a node may not report what it holds."""
ANSWER_NS = SECOND_NS
"""So long after every node of its group has a message its send is answered."""


@check("L11 answers owed", "sends", severity=Severity.LIVENESS)
def answers_owed(case: Case, found: Findings) -> int:
    """L11: a send is answered, under faults too, whose message every node of its group holds as
    promised a second before its client gives up.

    Judged in simulation, where each write and each sync was seen, under one lone master, of
    messages that are there at the end. Excused by a step that may have kept an answer of the
    group's nodes from a client, until a second after it, and by a node that was down.
    """
    evidence, losses = case.evidence, case.losses
    if evidence.record.backend != "sim" or evidence.foreign:
        raise NotApplicable("how long an answer takes is a machine's, which may be busy")
    examined = len(evidence.rows((Function.SEND, Function.TELL)))
    seen: dict[int, int] = {}
    for rows in (evidence.sends, evidence.rows((Function.TELL,))):
        for process, at_ns in zip(rows.column("process"), rows.column("invoked_ns"), strict=True):
            seen[int(process)] = max(int(at_ns), seen.get(int(process), 0))
    hindered: dict[tuple[int, str], list[Excuse]] = {}
    for row, group, end in (*_sent(case), *_told(case)):
        end_ns = seen[row.process] if row.returned_ns == UNKNOWN else row.returned_ns
        lineage, by_ns = losses.lineages[group], end_ns - ANSWER_NS
        if row.status >= 0 or by_ns <= row.invoked_ns:
            continue
        if not _is_everywhere(case, lineage, end, row.invoked_ns, by_ns):
            continue
        text = f"value {row.value} was at every node by then, and its send got no answer for"
        text += f" {(end_ns - row.invoked_ns) / 1e9:.1f} s"
        is_sent = row.function == Function.SEND
        operation = row.operation if is_sent else None
        example = evidence.example(row, text, operation=operation, time_ns=row.invoked_ns)
        clients = "producer" if is_sent else "teller"
        excuses = hindered.get((group, clients))
        if excuses is None:
            excuses = hindered[group, clients] = _hindrances(case, lineage, clients)
        near = (one for one in excuses if one.begin_ns <= end_ns and row.invoked_ns <= one.end_ns)
        found.add(example, excuse=next(near, None))
    if not examined:
        raise NotApplicable("nothing was sent that asked for an answer")
    return examined


def _sent(case: Case) -> Iterator[tuple[Row, int, int]]:
    """Sends that nobody answered and whose message is there, its group, and where it ends."""
    evidence, losses, stored = case.evidence, case.losses, case.evidence.stored
    sends = evidence.sends
    kinds, outcomes = sends.column("function"), sends.column("outcome")
    places = passes.lookup(sends.column("value"), stored.values, stored.keys, -1)
    columns = (map(int, column) for column in (kinds, outcomes, places))
    for number, (kind, outcome, key) in enumerate(zip(*columns, strict=True)):
        if kind == Function.SEND and outcome == Outcome.INFO and key >= 0:
            end = losses.sent[number].end
            if end is not None:
                yield sends.row(number), evidence.queues.names[key >> OFFSET_BITS].group, end


def _told(case: Case) -> Iterator[tuple[Row, int, int]]:
    """The same of what was sent to listeners, where it stands first; ends are those of records, so
    whoever has the first byte has it all."""
    evidence = case.evidence
    rows = list(evidence.rows((Function.TELL,), Outcome.INFO).each())
    topics = sorted({SCHEDULE_TOPIC, *map(evidence.history.topic, rows)})
    for log in evidence.finals() if rows else ():
        places = places_in(log.directory, topics)
        for row in rows:
            if row.value in places:
                first = min(place.physical for place in places[row.value])
                yield row, log.group, first + 1


def _is_everywhere(case: Case, lineage: Lineage, end: int, begin_ns: int, time_ns: int) -> bool:
    """Whether each node of a group holds what its lone master has up to `end`, by then."""
    evidence = case.evidence
    if lineage.era(begin_ns) is not lineage.era(time_ns + ANSWER_NS):
        return False
    if any(begin <= time_ns and begin_ns <= until for begin, until, _ in evidence.splits):
        return False
    for node in lineage.nodes:
        ends = lineage.ends[node]
        level = ends.at(time_ns).durable if evidence.flushes else ends.at(time_ns).written
        if not ends.complete or lineage.held(node, time_ns, level) < end:
            return False
    return True


def _hindrances(case: Case, lineage: Lineage, clients: str) -> list[Excuse]:
    """What may have kept answers of a group from clients: steps, and nodes that were down."""
    found: list[Excuse] = []
    for one in faults(case.evidence):
        words = {*one.targets, *one.step.replace(",", " ").split()}
        of_clients = any(word.startswith(clients) for word in words)
        is_near = of_clients or words.intersection(lineage.nodes)
        if is_near and (one.verb in HINDERS or of_clients):
            found.append(Excuse(one.step, one.begin_ns, one.end_ns + SETTLE_NS))
    down: dict[str, int] = dict.fromkeys(lineage.nodes, 0)
    for event in case.evidence.events(Function.NODE, "exit", "start"):
        if event.what == "exit" and event.node in lineage.nodes:
            down[event.node] = event.time_ns
        elif event.node in down:
            begin_ns = down.pop(event.node)
            found.append(Excuse(f"{event.node} was down", begin_ns, event.time_ns + BACK_NS))
    found += [case.evidence.excuse(f"{node} was down", at) for node, at in down.items()]
    return found
