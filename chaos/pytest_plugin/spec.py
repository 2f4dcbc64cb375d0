"""Run of a test: its specification, its script, its result.

Only `RunSpec` and `RunResult` pass between two processes; a `Script` is the test for its stage: a
body to perform, its requests, and the outcome.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import Step
from rocketbed.chaos.pytest_plugin.wishes import Wishes

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage


@dataclass(slots=True)
class Choice:
    """Steps that a replay leaves out, and steps that it has in place of the draw from the seed."""

    left_out: frozenset[int] = frozenset()
    """Numbers of the body's steps, counted from 1 in their order."""
    fault_phases: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Number of a fault phase, counted from 1 -> its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Run of a test: backend, cluster; the seed is the plan's."""

    test: str
    """The test's node id without the part in brackets: `tests/test_orders.py::test_failover`."""
    backend: str
    wishes: Wishes
    plan: Plan
    budget_s: float
    choice: Choice = field(default_factory=Choice)


@dataclass(slots=True, kw_only=True)
class RunResult:
    kind: str = "passed"
    """`passed`, `failed`, `skipped`, `xfailed`, `exit`; `broken`: the harness itself failed."""
    reason: str = ""
    """Why it was skipped or is broken."""
    error: BaseException | None = None
    """The body's error, if that can be sent from process to process."""
    longrepr: Any = None
    """pytest's own rendering of it, made where it was raised."""
    logged: str = ""
    """The body's log, as pytest formats it."""
    printed: tuple[str, str] = ("", "")
    """The body's output and errors, if pytest keeps them in memory (`--capture=sys`)."""
    signature: str = ""
    """Equal for equal failures: kind and place of the error, or ids of findings."""
    steps: Sequence[tuple[int, str]] = ()
    """Number and text of each step of the body; 0 for steps of the operator."""
    fault_phases: dict[int, tuple[str, ...]] = field(default_factory=dict)
    done: Sequence[str] = ()
    """All steps that were carried out, in order, with times and names."""
    digest: str = ""
    finding_ids: tuple[str, ...] = ()
    simulated_s: float = 0.0
    wall_s: float = 0.0
    directory: Path | None = None


@dataclass(slots=True, kw_only=True)
class Script:
    body: "Callable[[Stage], Awaitable[None]]"
    choice: Choice
    failover_s: float | None = None
    """Seconds that a master is down before a slave is promoted; None: never."""
    is_open: bool = False
    """True if other programs are to reach the cluster."""
    checks: set[str] | None = None
    """Ids of the requested checks; empty: all; None: nothing is judged."""
    asked_at: str = ""
    """Place of the request in the body."""
    failure: BaseException | None = None
    """The body's error, or why there is no cluster."""
    skipped: str = ""
    """Why the test cannot run here."""
    token: trio.lowlevel.TrioToken | None = None
    """Token of the trio loop that the body runs in."""
    scope: trio.CancelScope | None = None
    """Scope of the whole run; cancelling it ends the run in order."""
    body_task: trio.lowlevel.Task | None = None
    is_over: bool = False
    """True once the body has ended."""
    steps: dict[int, Step] = field(default_factory=dict)
    """The body's steps by number, concrete."""
    fault_phases: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Fault phases by number, with their steps."""
    has_sent: bool = False
    """True if any send went into the history."""
    waits: dict[object, Callable[[], str]] = field(default_factory=dict)
    """What clients wait for now, in words."""
    done: list[str] = field(default_factory=list)
    """All steps that were taken, the operator's too, with times and names."""

    @property
    def wants_judgement(self) -> bool:
        """True if the body has ended well and asked for checks."""
        return self.failure is None and not self.skipped and self.checks is not None

    async def perform(self, stage: "Stage") -> None:
        """Run the body; its error becomes `failure`."""
        self.body_task = trio.lowlevel.current_task()
        try:
            await self.body(stage)
        except (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if self.failure is None:  # else a group of what was cancelled over the budget
                self.failure = error
        finally:
            self.is_over = True

    def ask(self, ids: Collection[str], where: str) -> None:
        """Request checks; further requests add up."""
        if self.checks is None:
            self.checks = set(ids)
        else:
            self.checks = self.checks | set(ids) if self.checks and ids else set()
        self.asked_at = self.asked_at or where
