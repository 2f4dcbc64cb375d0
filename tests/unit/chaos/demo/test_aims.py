"""Checks of the demo that its kills hit their aim."""

import re
from typing import Any

from rocketbed.chaos.checks.result import CheckResult, Verdict
from rocketbed.chaos.demo.aims import aim_checks
from rocketbed.chaos.evidence.history import Event, Function, History
from rocketbed.chaos.evidence.record import Promise, RunRecord


def node(time_ns: int, name: str, kind: str, **fields: Any) -> Event:
    return Event(time_ns, Function.NODE, name, kind, fields)


def results(*events: Event) -> dict[str, CheckResult]:
    """Results by id, after both nodes have started and recovered."""
    record = RunRecord(
        scenario="demo", backend="process", seed=1, promise=Promise(), groups={"b": ["b1", "b2"]}
    )
    begun = [node(0, name, kind) for name in ("b1", "b2") for kind in ("start", "recovered")]
    history = History(events=[*begun, *events])
    return {result.id: result for result in aim_checks(history, record)}


def test_ids_are_identifiers() -> None:
    for events in ((), (node(9, "b1", "kill"), node(10, "b2", "promote"))):
        assert [
            name for name in results(*events) if not re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
        ] == []


def test_kill_before_the_recovery_ended_counts() -> None:
    during = results(node(5, "b2", "start"), node(6, "b2", "exit", cause="kill"))
    assert during["killed-in-recovery"].verdict == Verdict.OK
    after = results(node(6, "b2", "exit", cause="kill"))
    assert after["killed-in-recovery"].verdict == Verdict.DID_NOT_RUN


def test_the_killed_master_must_not_be_back_first() -> None:
    kill, back, turn = node(5, "b1", "kill"), (node(7, "b1", "start")), node(9, "b2", "promote")
    assert results(kill, turn)["another-node-led"].verdict == Verdict.OK
    assert results(kill, back, turn)["another-node-led"].verdict == Verdict.VIOLATED
    assert results()["another-node-led"].verdict == Verdict.DID_NOT_RUN


def test_node_that_stays_away_is_a_finding() -> None:
    assert results()["back-after-every-kill"].verdict == Verdict.OK
    assert results(node(5, "b2", "start"))["back-after-every-kill"].verdict == Verdict.VIOLATED
