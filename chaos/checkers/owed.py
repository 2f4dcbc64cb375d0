"""Are sends answered whose messages are where they were promised to be? (chaos.md 2.8)"""

from rocketbed.chaos.checkers import passes
from rocketbed.chaos.checkers.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checkers.context import faults
from rocketbed.chaos.checkers.evidence import SECOND_NS
from rocketbed.chaos.checkers.keys import OFFSET_BITS
from rocketbed.chaos.checkers.lineage import Lineage
from rocketbed.chaos.checkers.result import Excuse, Severity
from rocketbed.chaos.history import UNKNOWN, Function, Outcome

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
    group's nodes from a producer, until a second after it, and by a node that was down.
    """
    evidence, losses = case.evidence, case.losses
    if evidence.record.backend != "sim" or evidence.foreign:
        raise NotApplicable("how long an answer takes is a machine's, which may be busy")
    sends, stored = evidence.sends, evidence.stored
    kinds, outcomes = sends.column("function"), sends.column("outcome")
    places = passes.lookup(sends.column("value"), stored.values, stored.keys, -1)
    seen: dict[int, int] = {}
    for process, time_ns in zip(sends.column("process"), sends.column("invoked_ns"), strict=True):
        seen[int(process)] = max(int(time_ns), seen.get(int(process), 0))
    hindered: dict[int, list[Excuse]] = {}
    examined = 0
    columns = (map(int, column) for column in (kinds, outcomes, places))
    for number, (kind, outcome, key) in enumerate(zip(*columns, strict=True)):
        examined += kind == Function.SEND
        if kind != Function.SEND or outcome != Outcome.INFO or key < 0:
            continue
        row, message = sends.row(number), losses.sent[number]
        end_ns = seen[row.process] if row.returned_ns == UNKNOWN else row.returned_ns
        lineage = losses.lineages[evidence.queues.names[key >> OFFSET_BITS].group]
        by_ns = end_ns - ANSWER_NS
        if row.status >= 0 or by_ns <= row.invoked_ns or message.end is None:
            continue
        if not _is_everywhere(case, lineage, message.end, row.invoked_ns, by_ns):
            continue
        text = f"value {row.value} was at every node by then, and its send got no answer for"
        text += f" {(end_ns - row.invoked_ns) / 1e9:.1f} s"
        example = evidence.example(row, text, operation=row.operation, time_ns=row.invoked_ns)
        excuses = hindered.get(lineage.group)
        if excuses is None:
            excuses = hindered[lineage.group] = _hindrances(case, lineage)
        near = (one for one in excuses if one.begin_ns <= end_ns and row.invoked_ns <= one.end_ns)
        found.add(example, excuse=next(near, None))
    if not examined:
        raise NotApplicable("nothing was sent that asked for an answer")
    return examined


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


def _hindrances(case: Case, lineage: Lineage) -> list[Excuse]:
    """What may have kept answers of a group from producers: steps, and nodes that were down."""
    found: list[Excuse] = []
    for one in faults(case.evidence):
        words = {*one.targets, *one.step.replace(",", " ").split()}
        of_producers = any(word.startswith("producer") for word in words)
        is_near = of_producers or words.intersection(lineage.nodes)
        if is_near and (one.verb in HINDERS or of_producers):
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
