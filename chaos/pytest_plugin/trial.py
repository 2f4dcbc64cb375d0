"""Trial of a test at one backend and seed: its fixtures, and its run.

The fixtures' values are made in pytest's process and bound to a cluster in the process of the run:
an object in a plain fixture of the user is the same object there.
"""

import faulthandler
import gc
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

from rocketbed.chaos.pytest_plugin.asyncio_side import AsyncioChaos, AsyncioCluster
from rocketbed.chaos.pytest_plugin.blocking import BlockingChaos, BlockingCluster
from rocketbed.chaos.pytest_plugin.body import (
    BUDGET,
    Body,
    Overdue,
    run_async,
    run_asyncio,
    run_blocking,
)
from rocketbed.chaos.pytest_plugin.cluster import Cluster
from rocketbed.chaos.pytest_plugin.collection import RunsOn
from rocketbed.chaos.pytest_plugin.errors import BudgetSpent
from rocketbed.chaos.pytest_plugin.faults import Chaos
from rocketbed.chaos.pytest_plugin.spec import RunResult, RunSpec
from rocketbed.chaos.search.failures import explain
from rocketbed.host.child import EXIT_INTERRUPTED, Child, NothingSent, readable, signals_blocked
from rocketbed.host.scratch import Scratch

GRACE_S: Final = 20.0
"""Time that a run over its budget, or interrupted, may take to clean up before it is killed."""

Finish = Callable[[RunResult, BaseException | None], None]
"""Called when the run is over, in its process: to render its error, and to keep the log."""


class Trial:
    """Run and fixtures of one test."""

    def __init__(self, spec: RunSpec, body: Body, directory: Path, runs_on: RunsOn) -> None:
        """`directory` gets the run if it is kept."""
        self.spec = spec
        self.body = body
        self._directory = directory
        self.cluster: Cluster | AsyncioCluster | BlockingCluster
        self.chaos: Chaos | AsyncioChaos | BlockingChaos
        if runs_on == "trio":
            self.cluster = Cluster()
            self.chaos = Chaos(self.cluster)
        elif runs_on == "asyncio":
            self.cluster = AsyncioCluster()
            self.chaos = AsyncioChaos(self.cluster)
        else:
            self.cluster = BlockingCluster()
            self.chaos = BlockingChaos(self.cluster)

    @cached_property
    def directory(self) -> Path:
        """The directory of this run, created on first use."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        return self._directory

    def run_forked(
        self,
        arguments: Mapping[str, Any],
        finish: Finish,
        *,
        spec: RunSpec | None = None,
        quiet: bool = False,
        keep: Callable[[RunResult], bool] = lambda result: False,
    ) -> RunResult:
        """Run the body in a process of its own; its directory is kept if `keep` says so.

        `quiet`: what it prints past pytest is not shown.
        """
        run_spec = spec or self.spec
        with Scratch() as place:

            def work(send: Callable[[RunResult], NoReturn]) -> RunResult:
                if quiet:
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    for stream in (1, 2):
                        os.dup2(nowhere, stream)
                if run_spec.backend == "sim":
                    gc.freeze()
                    gc.disable()

                def overdue(error: BudgetSpent) -> NoReturn:
                    result = RunResult(kind="failed", signature=BUDGET, wall_s=run_spec.budget_s)
                    finish(result, error)
                    send(_sendable(result))

                try:
                    result, error = self._run(run_spec, place.path, arguments, overdue)
                    finish(result, error)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    return RunResult(kind="broken", reason=explain(error))
                return _sendable(result)

            result = _in_child(work, run_spec)
            if keep(result):
                shutil.copytree(place.path, self.directory, dirs_exist_ok=True)
            return result

    def run_here(self, arguments: Mapping[str, Any]) -> tuple[RunResult, BaseException | None]:
        """Run the body in this very process, without a budget: for a debugger."""
        with Scratch() as place:
            return self._run(self.spec, place.path, arguments, None)

    def _run(
        self, spec: RunSpec, directory: Path, arguments: Mapping[str, Any], overdue: Overdue | None
    ) -> tuple[RunResult, BaseException | None]:
        if isinstance(self.cluster, Cluster):
            return run_async(spec, self.body, directory, self.cluster, arguments, overdue)
        if isinstance(self.cluster, AsyncioCluster):
            return run_asyncio(spec, self.body, directory, self.cluster, arguments, overdue)
        return run_blocking(spec, self.body, directory, self.cluster, arguments, overdue)


def _in_child(
    work: Callable[[Callable[[RunResult], NoReturn]], RunResult], spec: RunSpec
) -> RunResult:
    """Return the result of a fork of this process, or why it sent none. If interrupted, end the
    fork first.

    `work` handles the budget itself; this only makes sure: the child prints where it hung, and is
    killed if it does not end.
    """
    over_s = spec.budget_s + GRACE_S
    with tempfile.TemporaryFile() as stacks:

        def watched(send: Callable[[RunResult], NoReturn]) -> RunResult:
            faulthandler.dump_traceback_later(over_s - GRACE_S / 2, file=stacks)
            return work(send)

        deadline = time.monotonic() + over_s
        with signals_blocked() as mask:
            child = Child(watched, mask)
        try:
            while (remaining_s := deadline - time.monotonic()) > 0:
                if readable([child.pipe], remaining_s) and child.read():
                    return child.value()
        except NothingSent as nothing:
            if nothing.code == EXIT_INTERRUPTED:
                raise KeyboardInterrupt from None
            if nothing.code >= 0 or time.monotonic() <= deadline - GRACE_S:
                return RunResult(kind="broken", reason=f"the process of the test {nothing}")
        except BaseException:
            with signals_blocked():
                child.kill(signal.SIGKILL if spec.backend == "sim" else signal.SIGINT)
                child.reap(time.monotonic() + GRACE_S)
            raise
        else:
            with signals_blocked():
                child.reap(0.0)
        stacks.seek(0)
        places = stacks.read().decode("utf-8", "replace").strip()
    reason = (
        f"the test took longer than its budget of {spec.budget_s:g} s (--rb-budget), did not stop"
        f" when told to, and was killed; it was at:\n{places}"
    )
    return RunResult(kind="broken", reason=reason)


def _sendable(result: RunResult) -> RunResult:
    try:
        pickle.loads(pickle.dumps(result.error))
    except Exception:
        result.error = None
    return result
