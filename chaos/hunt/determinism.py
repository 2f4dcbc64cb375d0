"""Is a run the same run elsewhere? Asked in fresh interpreters that differ in what must not matter.

Two children simulate one plan: with another hash seed each, the second without randomised addresses
where the kernel lets a process ask for that. Their digests have to be equal; if not, both run once
more and say what they did where they parted.
"""

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Any, Final

from rocketbed.chaos.host.scratch import Scratch
from rocketbed.chaos.scenario.form import plan_from_row, plan_to_row
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.sim.clock import CHECKPOINT_EVENTS
from rocketbed.chaos.sim.run import run_in_simulation

ADDR_NO_RANDOMIZE: Final = 0x0040000
ASK_PERSONALITY: Final = 0xFFFFFFFF
TIMEOUT_S: Final = 600.0
HASH_SEEDS: Final = (1, 4242)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sameness:
    """What two runs of one plan had in common."""

    digests: tuple[str, str]
    events: tuple[int, int]
    parted: str = ""
    """Where they parted, in words; empty when they did not."""

    @property
    def same(self) -> bool:
        return self.digests[0] == self.digests[1]

    @property
    def reason(self) -> str:
        """Why they are not the same; empty when they are."""
        return "" if self.same else f"digests {' and '.join(self.digests)}: {self.parted}"


class DeterminismError(Exception):
    """A child could not run; the message has the end of what it said."""


def same_digest(plan: Plan) -> Sameness:
    """Run a plan in two fresh interpreters and compare. Raises `DeterminismError`."""
    aslr = not can_fix_addresses()
    one = _child(plan, HASH_SEEDS[0], aslr=True)
    other = _child(plan, HASH_SEEDS[1], aslr=aslr)
    parted = ""
    if one["digest"] != other["digest"]:
        begin = shared_events(one["checkpoints"], other["checkpoints"])
        first = _child(plan, HASH_SEEDS[0], aslr=True, begin=begin)
        second = _child(plan, HASH_SEEDS[1], aslr=aslr, begin=begin)
        parted = _where(begin, first["trace"], second["trace"])
    return Sameness(
        digests=(one["digest"], other["digest"]),
        events=(one["events"], other["events"]),
        parted=parted,
    )


def window(plan: Plan, begin: int, end: int) -> list[str]:
    """What a plan's run does from one event to another, each as text. Raises `DeterminismError`."""
    trace: list[str] = _child(plan, HASH_SEEDS[0], aslr=True, begin=begin)["trace"]
    return trace[: end - begin]


def shared_events(one: list[str], other: list[str]) -> int:
    """How many events two runs surely have in common, by their checkpoints."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return len(list(same)) * CHECKPOINT_EVENTS


def can_fix_addresses() -> bool:
    """Whether a process here may ask for addresses that are not randomised (personality(2))."""
    try:
        return bool(ctypes.CDLL(None).personality(ASK_PERSONALITY) >= 0)
    except (OSError, AttributeError):
        return False


def _where(begin: int, one: list[str], other: list[str]) -> str:
    for at, (mine, theirs) in enumerate(zip_longest(one, other), start=begin):
        if mine != theirs:
            did = f"event {at}: one did {mine or 'nothing more'}"
            return f"{did}, the other {theirs or 'nothing more'}"
    return (
        f"between event {begin} and the end, but a repetition of both runs did not differ there:"
        " the divergence is not stable"
    )


def _child(plan: Plan, hash_seed: int, *, aslr: bool, begin: int | None = None) -> dict[str, Any]:
    request = {"plan": plan_to_row(plan), "aslr": aslr, "begin": begin}
    finished = subprocess.run(
        [sys.executable, "-m", "rocketbed.chaos.hunt.determinism"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=False,
    )
    if finished.returncode:
        raise DeterminismError(
            f"a child process exited with {finished.returncode}: {finished.stderr[-2000:]}"
        )
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def _main() -> None:
    request = json.load(sys.stdin)
    if not request["aslr"]:
        _without_aslr({**request, "aslr": True})
    begin = request["begin"]
    plan = plan_from_row(request["plan"])
    with Scratch() as scratch:
        record, simulation = run_in_simulation(plan, scratch.path, keep_trace=begin is not None)
    answer = {
        "digest": record.digest,
        "events": simulation.timeline.events,
        "checkpoints": simulation.timeline.checkpoints,
        "trace": [repr(event) for event in (simulation.timeline.trace or [])[begin or 0 :]],
    }
    json.dump(answer, sys.stdout)


def _without_aslr(request: dict[str, Any]) -> None:
    """Begin this program again with fixed addresses; does not return."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.personality(libc.personality(ASK_PERSONALITY) | ADDR_NO_RANDOMIZE)
    descriptor = os.memfd_create("request")
    os.write(descriptor, json.dumps(request).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.execv(sys.executable, [sys.executable, "-m", "rocketbed.chaos.hunt.determinism"])


if __name__ == "__main__":
    _main()
