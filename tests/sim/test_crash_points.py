"""A kill and a power cut at every disk event of a script, and during the recovery after it."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from tests.support.sim.crashes import MODES, crashed_run, whole_run
from tests.support.sim.store_oracle import check_all, crash_kind, reboot
from tests.support.sim.store_script import config, recover

KINDS = ["kill", "power-random", "power-strict", "power-prefix", "power-reorder"]
QUICK = ("kill", "power-random")
"""Kinds of crash that `make test` visits, at every second event; `make test-all` visits all."""
STRETCH = 25
"""Events that one process visits at a time."""
CASES = [
    *((kind, 2) for kind in QUICK),
    *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in KINDS),
]


def on_all_cores(visit: Callable[[Sequence[int]], None], events: Sequence[int]) -> None:
    """Visit events, side by side in as many processes as there are cores.

    Neighbours stay together: what they leave is often the same (`store_oracle`).
    """
    cores = len(os.sched_getaffinity(0))
    stretches = [events[first : first + STRETCH] for first in range(0, len(events), STRETCH)]
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:
        for _ in pool.map(visit, stretches):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "step"), CASES)
def test_every_crash_point_recovers(mode: str, kind: str, step: int) -> None:
    events = whole_run(mode)
    assert events > 400
    on_all_cores(partial(crash_at_each, mode, kind), range(1, events + 1, step))


def crash_at_each(mode: str, kind: str, events: Sequence[int]) -> None:
    settings = config(**MODES[mode])
    for event in events:
        run, ledger = crashed_run(mode, event, kind)
        try:
            check_all(run, ledger, kind, settings)
        except Exception as exc:
            raise AssertionError(f"{mode} {kind} at event {event}: {exc!r}") from exc


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "second"),
    [("kill", "kill"), ("power-random", "power-random"), ("power-random", "kill")],
)
@pytest.mark.parametrize("step", [90, pytest.param(37, marks=pytest.mark.slow)])
def test_a_crash_during_recovery_recovers(kind: str, second: str, step: int) -> None:
    on_all_cores(partial(crash_recoveries, kind, second), range(7, whole_run("async"), step))


def crash_recoveries(kind: str, second: str, events: Sequence[int]) -> None:
    settings = config()
    cause, power_mode = crash_kind(second)
    boots = 1 if kind == "kill" else 2
    for event in events:
        run, ledger = crashed_run("async", event, kind)
        second_reboot = reboot(run.image, kind, settings)
        for at in range(1, second_reboot.events + 1):
            interrupted = run_solo(
                recover,
                settings,
                image=run.image,
                boots=boots,
                seed=at,
                crash_at=at,
                kind=cause,
                mode=power_mode,
            )
            try:
                # `kind` says by which boot of the host it is started again.
                before = boots if second == kind else boots - 1
                check_all(interrupted, ledger, kind, settings, boots=before)
            except Exception as exc:
                where = f"{kind} at {event}, then {second} at {at}"
                raise AssertionError(f"{where}: {exc!r}") from exc
