"""Ends of a node that a fault explains, and for how long."""

import pytest
import trio

from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import Options, run_plan
from tests.mutation.planted.mutant import swap

SICK = ("at 1s disk b1 eio-fsync once for 1s as hurt", "after hurt+2s restart b1 down")
ARMED = ("at 1s crash b1 at store-event 20 as hurt", "after hurt+2s restart b1 down")
STOPPED = (
    "at 1s crash b1 at mark store.recovery_finished as hurt",
    "at 2s stop b1 for 500ms",
)
LATE = ("at 8.5s disk b1 eio-fsync once for 400ms",)
UNMET = ("at 1s crash b1 at mark store.cut_* within 1s",)


def findings(*steps: str, ends: int | None = None, after_s: float = 3) -> list[str]:
    """Return the findings on a lone node that ends some seconds after its start number `ends` and
    reports that its disk failed.
    """

    def plant() -> None:
        from rocketbed.node.store.errors import StoreFailed

        async def keep(self: object) -> None:
            starts.append(self)
            if len(starts) == ends:
                await trio.sleep(after_s)
                raise StoreFailed("planted")
            await original(self)

        starts: list[object] = []
        original = swap("rocketbed.node.store.retention:Retention.run", keep)

    return run_plan(plan_of(*steps), Options(before=plant)).finding_ids


def plan_of(*steps: str, nameservers: int = 1) -> Plan:
    return Plan(
        name="leave",
        seed=3,
        shape=Shape(brokers=1, nameservers=nameservers, repl="async"),
        producers=Producers(count=1, rate=20.0),
        consumers=Consumers(count=0),
        steps=tuple(map(parse_step, steps)),
        faults_s=9.0,
        recovery_s=9.0,
    )


@pytest.mark.parametrize("steps", [SICK, ARMED, STOPPED, UNMET])
def test_end_made_by_a_fault_is_explained(steps: tuple[str, ...]) -> None:
    assert findings(*steps) == []


def test_explained_end_is_in_the_ledger() -> None:
    judgement = run_plan(plan_of(*SICK)).judgement
    assert judgement is not None
    causes = [
        excuse.cause
        for excuse, covered in judgement.ledger.items()
        if "no-unexpected-exit" in covered
    ]
    assert causes == ["disk b1 eio-fsync once for 1s as hurt"]


def test_the_newest_fault_is_named() -> None:
    judgement = run_plan(plan_of("at 500ms disk b1 eio-read for 300ms", *SICK)).judgement
    assert judgement is not None
    causes = [
        excuse.cause
        for excuse, covered in judgement.ledger.items()
        if "no-unexpected-exit" in covered
    ]
    assert causes == ["disk b1 eio-fsync once for 1s as hurt"]


def test_end_at_an_armed_crash_point_is_explained() -> None:
    judgement = run_plan(plan_of(*ARMED)).judgement
    assert judgement is not None
    assert not judgement.result("no-unexpected-exit").excused


@pytest.mark.parametrize("steps", [SICK, ARMED])
def test_a_node_that_ends_again_is_found(steps: tuple[str, ...]) -> None:
    assert "no-unexpected-exit" in findings(*steps, ends=2)


def test_node_ended_by_a_past_fault_is_restarted() -> None:
    assert findings(*LATE, ends=1, after_s=12) == []


def test_a_restart_does_not_hide_an_end() -> None:
    assert "no-unexpected-exit" in findings(*SICK, "at 6.2s restart b1 down", ends=2)


@pytest.mark.parametrize(("after_s", "expected_ids"), [(14.0, ["no-unexpected-exit"]), (300.0, [])])
def test_unexplained_nameserver_end_in_the_calm_is_found(
    after_s: float, expected_ids: list[str]
) -> None:
    """The other one serves everybody."""

    def plant() -> None:
        async def end(self: object, **options: object) -> None:
            starts.append(self)
            with trio.move_on_after(after_s if len(starts) == 1 else 300):
                await original(self, **options)

        starts: list[object] = []
        original = swap("rocketbed.routing.nameserver:Nameserver.run", end)

    outcome = run_plan(plan_of(nameservers=2), Options(before=plant))
    assert outcome.finding_ids == expected_ids
