"""What a trial checks beside the general checks: that it did what it set out to do, and liveness.

A kill that missed its aim makes its check one that did not run, and so the trial no pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chaos.checkers.result import CheckResult, judged, not_run
from chaos.demo.drain import KeyQueries
from chaos.demo.old_store import OldStore
from chaos.demo.plan import SLAVES, DemoPlan, Target
from chaos.demo.strikes import Kill, Start
from chaos.history import Function, History, Outcome

AIMS = {
    Target.MASTER_WRITING: "D1 master killed while writing",
    Target.SLAVE_WRITING: "D2 slave killed while writing",
    Target.RECOVERY: "D3 node killed in its recovery",
}
NODES = 1 + len(SLAVES)
OCCASIONS = ("before the kills", "after the kills")
"""When old messages are asked for."""


@dataclass(slots=True)
class Endings:
    """How the trial's processes ended."""

    unclean: list[str] = field(default_factory=list)
    """Sentences on what did not stop as it should."""
    stopped: int = 0
    """Nodes that were told to stop."""
    caught_up: bool | None = None
    """Whether all slaves had the whole log before the stop; None: it did not come to that."""

    @property
    def all_clean(self) -> bool:
        """Whether every node was stopped, and ended as it should."""
        return self.stopped == NODES and not self.unclean


def check_run(
    plan: DemoPlan,
    *,
    starts: Sequence[Start],
    kills: Sequence[Kill],
    unexpected: Sequence[str],
    endings: Endings,
    keys: KeyQueries,
) -> list[CheckResult]:
    """Checks of what was done and seen while the trial ran."""
    results = [_aim(plan, target, name, kills) for target, name in AIMS.items()]
    back = [start for start in starts if start.reason != "first" and not start.killed]
    missing = [f"{start.node}, {start.reason}, did not serve" for start in back if not start.served]
    results.append(judged("D4 back after every kill", len(back), "restarts", missing))
    no_abort = [
        f"{kill.node}: no abort file after its kill" for kill in kills if not kill.abort_left
    ]
    results.append(judged("S12 abort file left by kills", len(kills), "kills", no_abort))
    results.append(judged("D5 no node ended by itself", len(starts), "starts", list(unexpected)))
    results.append(_caught_up(endings))
    results.append(judged("D7 stopped cleanly", endings.stopped, "nodes", endings.unclean))
    results.append(judged("Q1 found by key", keys.asked, "keys", keys.findings))
    return results


def _caught_up(endings: Endings) -> CheckResult:
    name = "D6 slaves caught up"
    if endings.caught_up is None:
        return not_run(name, "slaves", "the trial did not come to that")
    behind = [] if endings.caught_up else ["slaves did not get all of the master's log"]
    return judged(name, len(SLAVES), "slaves", behind)


def _aim(plan: DemoPlan, target: Target, name: str, kills: Iterable[Kill]) -> CheckResult:
    """Whether a kill of this kind met what it was aimed at."""
    tried = [kill for kill in kills if kill.target is target]
    if not tried:
        return not_run(name, "kills", "there was no such kill")
    hits = [kill for kill in tried if kill.hit]
    if not hits:
        met = "the recovery was over" if target is Target.RECOVERY else "nothing was in flight"
        return not_run(name, "kills", f"{len(tried)} tried, but {met} at that moment")
    first = hits[0]
    note = f"{first.node} at {first.at_s:.1f} s, {first.in_flight} messages in flight"
    return judged(name, len(hits), "kills", [], note)


def read_back(history: History) -> CheckResult:
    """A2: every acknowledged message comes back through the client, at its offset, unharmed."""
    name = "A2 read back"
    got: dict[tuple[int, int, int], tuple[int, int]] = {}
    for row in history.rows():
        if row.function == Function.GOT:
            got[row.topic, row.queue, row.queue_offset] = row.value, row.body_crc
    if not got:
        return not_run(name, "acknowledged messages", "nothing was read back")
    findings: list[str] = []
    examined = 0
    for row in history.rows():
        if row.function != Function.SEND or row.outcome != Outcome.OK:
            continue
        examined += 1
        place = f"{history.topic(row)}/{row.queue} offset {row.queue_offset}"
        found = got.get((row.topic, row.queue, row.queue_offset))
        if found is None:
            findings.append(f"value {row.value}, acknowledged at {place}, was not read back")
        elif found != (row.value, row.body_crc):
            findings.append(f"value {row.value} was acknowledged at {place}, {found[0]} was read")
    return judged(name, examined, "acknowledged messages", findings, f"{len(got)} read")


def old_messages(old: OldStore) -> CheckResult:
    """O1: everything that was in the directory before is served as it was, every time."""
    name = "O1 old messages served"
    if len(old.served) < len(OCCASIONS):
        missing = " and ".join(when for when in OCCASIONS if when not in old.served)
        return not_run(name, "old messages", f"they were not asked for {missing}")
    note = ", ".join(f"{served} {when}" for when, served in old.served.items())
    return judged(name, old.messages, "old messages", old.findings, f"{note}, as in the files")


def outages(history: History, kills: Sequence[Kill]) -> None:
    """Fill in how long after each kill the next message was acknowledged.

    Counted are sends that began after the kill: earlier answers may still have been on their way.
    """
    acknowledged = sorted(
        (row.invoked_ns, row.returned_ns)
        for row in history.rows()
        if row.function == Function.SEND and row.outcome == Outcome.OK
    )
    for kill in kills:
        at_ns = kill.at_s * 1e9
        returned = [end for begin, end in acknowledged if begin > at_ns]
        kill.outage_s = (min(returned) - at_ns) / 1e9 if returned else None
