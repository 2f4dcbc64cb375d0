"""Runs in processes of their own: what comes back, and that nothing stays when they are ended."""

import errno
import gc
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from rocketbed.chaos.checks.check import Case
from rocketbed.chaos.checks.messages.losses import lost_writes
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.search import runner
from rocketbed.chaos.search.failures import explain, is_full
from rocketbed.chaos.search.runner import Options, Outcome, run_many, run_plan
from rocketbed.host import scratch
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

PLAN = Plan(
    name="small",
    seed=1,
    shape=Shape(brokers=1, nameservers=1, repl="async"),
    producers=Producers(count=1, rate=5),
    consumers=Consumers(count=1),
    faults_s=1.0,
    recovery_s=2.0,
)
HANG_S = 20.0
"""What a run that never ends may take where an interrupt is expected to come first."""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories in which scratch directories are created."""
    monkeypatch.setattr(scratch, "MEMORY", str(tmp_path))
    return tmp_path


def fail(error: BaseException) -> Callable[[], None]:
    def before() -> None:
        raise error

    return before


def hang() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.pause()


def test_a_run_leaves_nothing_but_its_outcome(places: Path) -> None:
    outcome = run_plan(PLAN)
    assert outcome.verdict == "pass", outcome.error or outcome.finding_ids
    assert outcome.directory is None
    assert list(places.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "expected_text"),
    [
        (OSError(errno.ENOSPC, "full", "/x/history.rbh"), "no space left where the harness writes"),
        (HostError("there is no TUN: load the module"), "there is no TUN: load the module"),
        (ZeroDivisionError("deep inside"), "ZeroDivisionError: deep inside"),
    ],
)
def test_a_harness_that_fails_says_why(
    places: Path, error: BaseException, expected_text: str
) -> None:
    outcome = run_plan(PLAN, Options(before=fail(error)))
    assert (outcome.verdict, outcome.exit_code) == ("harness-error", 4)
    assert expected_text in outcome.error
    assert list(places.iterdir()) == []


def test_a_full_disk_takes_the_kept_directory_along(tmp_path: Path) -> None:
    full = Options(before=fail(OSError(errno.ENOSPC, "full")))
    assert run_plan(PLAN, full, directory=tmp_path / "run").directory is None
    assert not (tmp_path / "run").exists()
    failing = Options(before=fail(ValueError("a bug of ours")))
    assert run_plan(PLAN, failing, directory=tmp_path / "run").directory == tmp_path / "run"


def test_a_run_that_takes_too_long_is_ended(places: Path) -> None:
    outcome = run_plan(PLAN, Options(before=hang, timeout_s=0.3))
    assert outcome.exit_code == 4
    assert "longer than 0.3 s" in outcome.error
    assert list(places.iterdir()) == []


def test_killed_process_is_reported_as_killed(places: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    outcome = run_plan(PLAN, Options(before=die))
    assert "exited with code -9" in outcome.error
    assert list(places.iterdir()) == []


def test_closing_the_results_ends_the_other_runs(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "END_S", 600.0)
    began = time.monotonic()
    plans = [replace(PLAN, seed=seed) for seed in range(1, 4)]
    reading, writing = os.pipe()

    def first_only() -> None:
        if os.read(reading, 1) != b"1":
            hang()

    os.write(writing, b"123")
    with closing(run_many(plans, Options(before=first_only), jobs=3)) as outcomes:
        first = next(outcomes)
        assert first.verdict == "pass"
        assert len(list(places.iterdir())) == 2
    assert list(places.iterdir()) == []
    assert time.monotonic() - began < 600, "simulations are not asked twice to end"
    os.close(reading)
    os.close(writing)


def test_an_interrupt_anywhere_ends_all_runs(places: Path) -> None:
    """A signal may come at any moment: between fork and bookkeeping, too."""
    assert in_a_process_of_its_own(interrupt_again_and_again, places) == 0


def test_an_interrupt_within_a_finalizer_counts(places: Path) -> None:
    """An exception in a finalizer is lost; memory is tidied before the first fork."""
    assert in_a_process_of_its_own(interrupt_in_finalizer, places) == 0


def in_a_process_of_its_own(check: Callable[[Path], None], places: Path) -> int:
    """Exit code of a process with one thread, as the command has.

    The kernel gives a signal to any thread that does not hold it back, and this process has idle
    ones from other tests.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            check(places)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def interrupt_again_and_again(places: Path) -> None:
    gc.disable()
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    for delay_s in (0.0001, 0.001, 0.003, 0.01, 0.02, 0.03, 0.1):
        with pytest.raises(KeyboardInterrupt):
            interrupted_after(delay_s)
        assert_all_ended(places)


def interrupted_after(delay_s: float) -> None:
    """Begin runs that never end, with a SIGINT on the way."""
    options = Options(before=hang, timeout_s=HANG_S)
    with closing(run_many([PLAN] * 8, options, jobs=4)) as outcomes:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        next(outcomes)


class InterruptsAtItsEnd:
    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def interrupt_in_finalizer(places: Path) -> None:
    gc.disable()
    InterruptsAtItsEnd()
    with (
        pytest.raises(KeyboardInterrupt),
        closing(run_many([PLAN], Options(before=hang, timeout_s=HANG_S), jobs=1)) as outcomes,
    ):
        next(outcomes)
    assert_all_ended(places)


def assert_all_ended(places: Path) -> None:
    assert list(places.iterdir()) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_crashing_check_is_no_pass(places: Path) -> None:
    def break_a_check() -> None:
        def crash(_case: Case) -> NoReturn:
            raise ZeroDivisionError("the check itself")

        lost_writes.run = crash

    outcome = run_plan(PLAN, Options(before=break_a_check))
    assert (outcome.verdict, outcome.exit_code) == ("unknown", 6)
    assert outcome.judgement is not None
    assert "ZeroDivisionError" in outcome.judgement.result("lost-write").note


def test_places_are_on_record_before_they_are_made(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Ledger.begin(places / "runs", guard=False)
    monkeypatch.setattr(scratch, "keeper", lambda: run)
    recorded, removed = scratch.Scratch(), scratch.Scratch()
    removed.close()
    assert run.close().removed == [f"directory {recorded.path}"]
    assert not recorded.path.exists()


def test_explanations_look_into_groups() -> None:
    full = OSError(errno.ENOSPC, "no room", "/run/file")
    group = BaseExceptionGroup("", [ValueError("x"), BaseExceptionGroup("", [full])])
    assert is_full(group)
    assert explain(group) == (
        "no space left where the harness writes (/run/file): free some space and run again"
    )
    assert explain(BaseExceptionGroup("", [HostError("why")])) == "why"
    assert not is_full(ValueError())
    assert is_full(shutil.Error([("a", "b", "[Errno 28] No space left on device")]))
    assert not is_full(shutil.Error([("a", "b", "[Errno 5] Input/output error")]))


def test_outcome_without_judgement_is_a_harness_error() -> None:
    outcome = Outcome(plan=PLAN, backend="sim", error="why")
    assert (outcome.verdict, outcome.exit_code, outcome.finding_ids) == ("harness-error", 4, [])
