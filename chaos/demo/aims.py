"""Checks that the kills hit their aim: a kill that missed proves nothing."""

from collections.abc import Sequence
from itertools import pairwise

from rocketbed.chaos.checks.evidence import SENDS
from rocketbed.chaos.checks.result import CheckResult, judged, not_run
from rocketbed.chaos.evidence.history import Event, Function, History, Outcome
from rocketbed.chaos.evidence.record import RunRecord

CLOSE_NS = 50_000_000
"""Sends within this time of a kill, before and after it, show that there were writers."""
GAP_NS = 5_000_000_000
"""Time after a kill within which the longest time without an acknowledgement may begin."""


def aim_checks(history: History, record: RunRecord) -> list[CheckResult]:
    """Return whether master and slaves were killed while messages were under way, and one in its
    recovery; whether all are back; and, last, whether another led before the first was back."""
    of_master: list[Event] = []
    of_slaves: list[Event] = []
    master = record.nodes[0]
    for event in history.events:
        if event.kind == "promote":
            master = event.node
        elif event.kind == "kill" and event.node:
            (of_master if event.node == master else of_slaves).append(event)
    return [
        _while_writing("master-killed-while-writing", of_master, history),
        _while_writing("slave-killed-while-writing", of_slaves, history),
        _in_recovery(history.events),
        _back(history.events, record),
        _led_on(of_master[0] if of_master else None, history),
    ]


def _while_writing(name: str, kills: Sequence[Event], history: History) -> CheckResult:
    """Check kills with sends under way, or begun right before and right after."""
    hits = []
    for kill in kills:
        began_ns = kill.fields.get("began_ns", kill.time_ns)
        under_way = before = after = 0
        for row in history.columns.rows():
            if row.function in SENDS:
                under_way += row.invoked_ns <= began_ns < row.returned_ns
                before += 0 <= began_ns - row.invoked_ns < CLOSE_NS
                after += 0 < row.invoked_ns - began_ns < CLOSE_NS
        if under_way or (before and after):
            hits.append(f"{kill.node}, {under_way} messages in flight")
    if not hits:
        return not_run(name, "kills", f"{len(kills)} tried, but nobody was writing then")
    return judged(name, len(hits), "kills", [], "; ".join(hits))


def _led_on(kill: Event | None, history: History) -> CheckResult:
    """Check who led after the first master's death, and how long nothing was acknowledged."""
    name = "another-node-led"
    if kill is None:
        return not_run(name, "kills", "no master was killed")
    died_ns = kill.fields.get("began_ns", kill.time_ns)
    later = [event for event in history.events if event.time_ns >= died_ns]
    promoted = next((event for event in later if event.kind == "promote"), None)
    back = next(
        (event for event in later if event.kind == "start" and event.node == kill.node), None
    )
    if promoted is None or (back is not None and back.time_ns < promoted.time_ns):
        finding = f"nobody led on after {kill.node} before it was back"
        return judged(name, 1, "kills", [finding])
    times = sorted(
        row.returned_ns
        for row in history.columns.rows()
        if row.function in SENDS and row.outcome == Outcome.OK
    )
    gaps = [b - a for a, b in pairwise(times) if died_ns <= b and a < died_ns + GAP_NS]
    longest_ms = max(gaps, default=0) / 1e6
    takeover = f"{promoted.node} took over from {kill.node}: {longest_ms:.0f} ms"
    return judged(name, 1, "kills", [], f"{takeover} without an acknowledgement")


def _in_recovery(events: Sequence[Event]) -> CheckResult:
    """Check a kill between a start and its `recovered`."""
    recovering: set[str] = set()
    hits = []
    for event in events:
        if event.function != Function.NODE:
            continue
        if event.kind == "start":
            recovering.add(event.node)
        elif event.kind == "recovered":
            recovering.discard(event.node)
        elif event.kind == "exit":
            if event.fields.get("cause") == "kill" and event.node in recovering:
                hits.append(event.node)
            recovering.discard(event.node)
    name = "killed-in-recovery"
    if not hits:
        return not_run(name, "kills", "no kill met a recovery")
    return judged(name, len(hits), "kills", [], ", ".join(hits))


def _back(events: Sequence[Event], record: RunRecord) -> CheckResult:
    """Check that every node serves at the end: its last start has recovered."""
    last: dict[str, str] = {}
    restarts = 0
    for event in events:
        if event.function == Function.NODE and event.kind in ("start", "recovered"):
            restarts += event.kind == "start"
            last[event.node] = event.kind
    nodes = record.nodes
    findings = [f"{node} did not come back" for node in nodes if last.get(node) != "recovered"]
    return judged("back-after-every-kill", restarts, "starts", findings)
