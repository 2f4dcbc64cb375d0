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
    """A child could not run; the message has the end of what it said."""


def difference(plan: Plan) -> str:
    """Run a plan in two fresh interpreters: where they parted, in words; empty when they did not.

    Raises `DeterminismError`.
    """
    one = _child(plan, HASH_SEEDS[0])
    other = _child(plan, HASH_SEEDS[1], aslr=False)
    if one["digest"] == other["digest"]:
        return ""
    begin = shared_events(one["checkpoints"], other["checkpoints"])
    first = _child(plan, HASH_SEEDS[0], begin=begin)
    second = _child(plan, HASH_SEEDS[1], aslr=False, begin=begin)
    parted = _where(begin, first["trace"], second["trace"])
    return f"digests {one['digest']} and {other['digest']}: {parted}"


def window(plan: Plan, begin: int, end: int) -> list[str]:
    """What a plan's run does from one event to another, each as text. Raises `DeterminismError`."""
    trace: list[str] = _child(plan, HASH_SEEDS[0], begin=begin)["trace"]
    return trace[: end - begin]


def shared_events(one: list[str], other: list[str]) -> int:
    """How many events two runs surely have in common, by their checkpoints."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return len(list(same)) * CHECKPOINT_EVENTS


def _where(begin: int, one: list[str], other: list[str]) -> str:
    for at, (mine, theirs) in enumerate(zip_longest(one, other), start=begin):
        if mine != theirs:
            did = f"event {at}: one did {mine or 'nothing more'}"
            return f"{did}, the other {theirs or 'nothing more'}"
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
    """Let the program that this process becomes have them, where the kernel lets it."""
    libc = ctypes.CDLL(None)
    libc.personality(libc.personality(ASK_PERSONALITY) | ADDR_NO_RANDOMIZE)


if __name__ == "__main__":
    _main()
