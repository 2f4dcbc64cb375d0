"""Tests that a run is repeatable, in fresh interpreters that differ in what must not matter.

Two child processes simulate one plan, each with another hash seed, the second without randomised
addresses if the kernel supports that. Their digests must be equal; if not, both run again and
report their events where they diverged.
"""

import ctypes
import json
import os
import subprocess
import sys
from itertools import takewhile, zip_longest
from typing import Any, Final

from rocketbed.chaos.backends.sim.clock import CHECKPOINT_EVENTS
from rocketbed.chaos.backends.sim.run import run_in_simulation
from rocketbed.chaos.plan.form import plan_from_row, plan_to_row
from rocketbed.chaos.plan.plan import Plan
from rocketbed.host.scratch import Scratch

ADDR_NO_RANDOMIZE: Final = 0x0040000
ASK_PERSONALITY: Final = 0xFFFFFFFF
TIMEOUT_S: Final = 600.0
HASH_SEEDS: Final = (1, 4242)


class DeterminismError(Exception):
    """A child could not run; the message has the end of its output."""


def difference(plan: Plan) -> str:
    """Run a plan in two fresh interpreters and return where they diverged, in words; empty if not.

    Raises `DeterminismError`.
    """
    answer_1 = _child(plan, HASH_SEEDS[0])
    answer_2 = _child(plan, HASH_SEEDS[1], aslr=False)
    if answer_1["digest"] == answer_2["digest"]:
        return ""
    begin = shared_events(answer_1["checkpoints"], answer_2["checkpoints"])
    first = _child(plan, HASH_SEEDS[0], begin=begin)
    second = _child(plan, HASH_SEEDS[1], aslr=False, begin=begin)
    divergence = _first_difference(begin, first["trace"], second["trace"])
    return f"digests {answer_1['digest']} and {answer_2['digest']}: {divergence}"


def window(plan: Plan, begin: int, end: int) -> list[str]:
    """Return the events of a plan's run in a range, as text. Raises `DeterminismError`."""
    trace: list[str] = _child(plan, HASH_SEEDS[0], begin=begin)["trace"]
    return trace[: end - begin]


def shared_events(checkpoints_1: list[str], checkpoints_2: list[str]) -> int:
    """Return how many events two runs certainly have in common, by their checkpoints."""
    same = takewhile(
        lambda pair: pair[0] == pair[1], zip(checkpoints_1, checkpoints_2, strict=False)
    )
    return len(list(same)) * CHECKPOINT_EVENTS


def _first_difference(begin: int, trace_1: list[str], trace_2: list[str]) -> str:
    for at, (event_1, event_2) in enumerate(zip_longest(trace_1, trace_2), start=begin):
        if event_1 != event_2:
            did = f"event {at}: one did {event_1 or 'nothing more'}"
            return f"{did}, the other {event_2 or 'nothing more'}"
    return (
        f"between event {begin} and the end, but a repetition of both runs did not differ there:"
        " the divergence is not stable"
    )


def _child(
    plan: Plan, hash_seed: int, *, aslr: bool = True, begin: int | None = None
) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-m", "rocketbed.chaos.search.determinism"],
        input=json.dumps({"plan": plan_to_row(plan), "begin": begin}),
        preexec_fn=None if aslr else _fix_addresses,
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
    begin = request["begin"]
    plan = plan_from_row(request["plan"])
    with Scratch() as scratch:
        record, simulation = run_in_simulation(plan, scratch.path, keep_trace=begin is not None)
    answer = {
        "digest": record.digest,
        "checkpoints": simulation.timeline.checkpoints,
        "trace": [repr(event) for event in (simulation.timeline.trace or [])[begin or 0 :]],
    }
    json.dump(answer, sys.stdout)


def _fix_addresses() -> None:
    """Turn off address randomisation for the program that this process becomes, if the kernel
    can."""
    libc = ctypes.CDLL(None)
    libc.personality(libc.personality(ASK_PERSONALITY) | ADDR_NO_RANDOMIZE)


if __name__ == "__main__":
    _main()
