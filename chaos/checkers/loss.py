"""What may be lost, and what was: the bound of chaos.md 2.3 beside the actual loss.

A kill takes no byte that was handed to the operating system, and a pause or a cut of the network
takes nothing at all, so after these no acknowledged message may be missing. A power cut may take
what no flush has covered; that bound needs the trace of the disk layer, and without it the check
does not run rather than guess.
"""

from chaos.checkers.evidence import Evidence
from chaos.checkers.messages import lost_rows
from chaos.checkers.result import CheckResult, judged, not_run
from chaos.history import Function, Outcome

NAME = "2.3 allowed loss"
HARMLESS = frozenset(
    {"kill", "kill-in-recovery", "stop", "start", "ready", "recovered", "exit", "role"}
    | {"pause", "resume", "partition", "cut", "heal"}
)
"""Events that take nothing which a node had handed to the operating system."""


def allowed_loss(evidence: Evidence) -> CheckResult:
    """The bound, and the acknowledged messages that are missing beyond it."""
    for event in evidence.history.events:
        if event.function in (Function.NEMESIS, Function.NODE) and event.what not in HARMLESS:
            reason = f"{event.what} of {event.node}: its bound needs a trace of what was flushed"
            return not_run(NAME, "acknowledged messages", reason)
    if evidence.final is None:
        return not_run(NAME, "acknowledged messages", "the leader's directory was not read")
    acknowledged = evidence.sends(Outcome.OK)
    lost = lost_rows(evidence, acknowledged)
    size = sum(row.length for row in lost)
    note = f"allowed 0 messages, lost {len(lost)} of {len(acknowledged)} ({size} bytes of bodies)"
    findings = [f"value {row.value}: outside of the bound" for row in lost]
    return judged(NAME, len(acknowledged), "acknowledged messages", findings, note)
