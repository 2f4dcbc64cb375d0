"""What one run of a test is to be, and what it came to: all that passes between two processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.testing.stage import Choice
from rocketbed.chaos.testing.wishes import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run of one test: backend, seed, cluster."""

    test: str
    """The test's node id without the part in brackets: `tests/test_orders.py::test_failover`."""
    backend: str
    seed: int
    wishes: Wishes
    plan: Plan
    budget_s: float
    choice: Choice = field(default_factory=Choice)


@dataclass(slots=True, kw_only=True)
class Told:
    """How one run ended."""

    kind: str = "passed"
    """`passed`, `failed`, `skipped`, `xfailed`, `exit`; `broken`: the harness itself failed."""
    reason: str = ""
    """Why it was skipped or is broken."""
    error: BaseException | None = None
    """What the body raised, where that can be sent from process to process."""
    longrepr: Any = None
    """pytest's own rendering of it, made where it was raised."""
    logged: str = ""
    """What the body logged, as pytest formats it."""
    printed: tuple[str, str] = ("", "")
    """What it wrote to output and errors, where pytest keeps that in memory (`--capture=sys`)."""
    signature: str = ""
    """What makes two failures the same: kind and place of the error, or ids of findings."""
    steps: Sequence[tuple[int, str]] = ()
    """Number and text of each step of the body; 0 where nobody of the body's took it."""
    storms: dict[int, tuple[str, ...]] = field(default_factory=dict)
    done: Sequence[str] = ()
    """All that was done, in time, with times and names."""
    digest: str = ""
    finding_ids: tuple[str, ...] = ()
    simulated_s: float = 0.0
    body_s: float = 0.0
    wall_s: float = 0.0
    directory: Path | None = None
