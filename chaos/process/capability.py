"""What this machine can do to processes, disks, clocks and networks, as data.

A step of a scenario names the capability it needs; the planner skips the step, with the reason,
where `chaos.cluster.doctor.report` found it missing. Names: chaos.md 3.5.
"""

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["works", "broken", "absent"]
"""`absent`: something it needs is missing; `broken`: all is there, and the self-test failed."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    state: State
    reason: str
    """What works how well, what failed, or what is missing and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing a machine can do, or why it cannot."""

    name: str
    """Such as `disk.powercut.kernel`."""
    state: State
    reason: str
    seconds: float
    """How long the probe took."""

    @property
    def works(self) -> bool:
        return self.state == "works"

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def works(reason: str) -> ProbeResult:
    return ProbeResult("works", reason)


def broken(reason: str) -> ProbeResult:
    return ProbeResult("broken", reason)


def absent(reason: str) -> ProbeResult:
    return ProbeResult("absent", reason)
