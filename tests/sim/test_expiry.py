"""Retention in a run: what is old goes, nothing else, and everybody copes with it."""

from collections.abc import Callable
from typing import Any

import pytest

from rocketbed.chaos.plan.generator import RETENTION
from rocketbed.chaos.plan.plan import Background, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import Options, Outcome, run_plan
from tests.mutation.planted.mutant import swap


def outcome_of(*steps: str, plant: Callable[[], None] | None = None) -> Outcome:
    """A run in which an hour of the wall clock passes in 15 s."""
    plan = Plan(
        name="expiry",
        seed=5,
        shape=Shape(brokers=2, nameservers=1, flush="sync", segment=1 << 14, settings=RETENTION),
        producers=Producers(count=1, rate=20.0, queues=1, body=(400, 1500)),
        background=Background(wall_rate=240),
        steps=tuple(map(parse_step, steps)),
        faults_s=30.0,
        recovery_s=30.0,
    )
    return run_plan(plan, Options(before=plant))


def one_file_too_early() -> None:
    """A segment is as old as its first record."""

    def expired(self: Any, start: int) -> bool:
        from rocketbed.node.store.checkpointer import store_ms_at

        now_ms = self._parts.world.clock.wall_ms()
        return bool(store_ms_at(self._parts, start) + self._parts.config.reserved_ms <= now_ms)

    swap("rocketbed.node.store.retention:Retention._expired", expired)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        (),
        ("at 24s wipe b2 for 300ms",),
        ("at 24s wipe b1 as lost", "after lost+1s promote b2", "after lost+2s restart b1"),
    ],
)
def test_old_messages_expire_without_findings(steps: tuple[str, ...]) -> None:
    """A slave that begins with an empty disk has all of the rest of its master's log."""
    outcome = outcome_of(*steps)
    assert outcome.finding_ids == []
    assert outcome.judgement is not None
    assert outcome.judgement.result("retention").examined > 10


@pytest.mark.slow
def test_a_segment_that_goes_too_early_is_found() -> None:
    assert "retention" in outcome_of(plant=one_file_too_early).finding_ids
