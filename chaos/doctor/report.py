"""Faults that this machine can make: each is tried for real, in about a second all together.

    for row in doctor_rows(): ...      print(render_table(rows))      print(render_json(rows))

A probe is a function of the doctor's run (for mounts, groups, files); a new one is one line in
`PROBES`. Probes run side by side, each with things of its own.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Literal

from rocketbed.chaos.doctor import network, probes
from rocketbed.host.janitor.record import Ledger

State = Literal["works", "broken", "absent"]
"""`absent`: something it needs is missing; `broken`: everything is there, and the self-test
failed."""
ProbeFunction = Callable[[Ledger], str]
"""Returns what works how well."""
SIDE_BY_SIDE: Final = 6
PROBES: Final[dict[str, ProbeFunction]] = {
    "disk.powercut.kernel": probes.probe_power_cut,
    "disk.faults.preload": probes.probe_preload,
    "clock.jump": probes.probe_clock,
    "proc.pause": probes.probe_pause,
    "proc.cpu": probes.probe_cpu,
    "net.switch": lambda _run: network.probe_switch(),
    "net.loss.packet": lambda _run: network.probe_loss(),
    "net.reset": lambda _run: network.probe_reset(),
    "net.proxy": lambda _run: network.probe_proxy(),
    "docker": lambda _run: probes.probe_docker(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Ability of a machine, or why it is missing."""

    name: str
    """Such as `disk.powercut.kernel`."""
    state: State
    reason: str
    """What works how well, what failed, or what is missing and how to get it."""
    seconds: float
    """Duration of the probe, to a millisecond."""

    @property
    def works(self) -> bool:
        return self.state == "works"


def doctor_rows(names: Iterable[str] | None = None) -> list[Capability]:
    """Return every capability (or the named ones) in its current state, in the order of `PROBES`.

    Leftovers of dead runs are swept first. Raises `ValueError` for an unknown name.
    """
    requested = list(PROBES if names is None else names)
    if unknown := [name for name in requested if name not in PROBES]:
        raise ValueError(f"unknown capability {unknown[0]}; `rocketbed chaos doctor` lists all")
    chosen = [name for name in PROBES if name in requested]
    with Ledger.begin() as run, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return list(pool.map(partial(_examine, run), chosen))


def render_table(rows: Sequence[Capability]) -> str:
    width = max((len(row.name) for row in rows), default=0)
    return "\n".join(
        f"{row.name:{width}}  {row.state:6}  {row.seconds:5.2f} s  {row.reason}" for row in rows
    )


def render_json(rows: Sequence[Capability]) -> str:
    """Render for programs: a list of objects with name, state, reason, seconds."""
    return json.dumps([asdict(row) for row in rows], indent=2)


def _examine(run: Ledger, name: str) -> Capability:
    began = time.monotonic()
    state: State = "broken"  # unless nothing goes wrong
    try:
        reason = PROBES[name](run)
        state = "works"
    except probes.Missing as exc:
        state, reason = "absent", str(exc)
    except Exception as exc:
        reason = " ".join(str(exc).split()) or type(exc).__name__
    seconds = round(time.monotonic() - began, 3)
    return Capability(name=name, state=state, reason=reason, seconds=seconds)
