"""One test at one backend and seed: what its fixtures are, and how it is run.

The fixtures' values are made in pytest's process and bound to a cluster in the process of the run:
what a plain fixture of the user's keeps is the same object there.
"""

import gc
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from chaos.scratch import Scratch
from chaos.testing.blocking import BlockingChaos, BlockingCluster, StageThread
from chaos.testing.child import run_forked
from chaos.testing.cluster import Cluster
from chaos.testing.errors import BudgetSpent, TestingError
from chaos.testing.faults import Chaos
from chaos.testing.fixtures import Deferred, Fixtures
from chaos.testing.hang import alarm, spent, where_is
from chaos.testing.order import Order, Told
from chaos.testing.perform import perform, signature
from chaos.testing.script import Script
from chaos.testing.stage import Stage

Finish = Callable[[Told, BaseException], None]
"""Called where the error was raised, to render it."""


class Trial:
    """What stands behind the fixtures of one test."""

    def __init__(
        self,
        order: Order,
        function: Callable[..., Any],
        home: str,
        directory: Path,
        *,
        is_async: bool,
    ) -> None:
        """`home` is the file of the test, `directory` where its run goes if it is kept."""
        self.function = function
        self.order = order
        self.home = home
        self.is_async = is_async
        self.was_asked_for_directory = False
        self._directory = directory
        self.cluster: Cluster | BlockingCluster
        self.chaos: Chaos | BlockingChaos
        if is_async:
            self.cluster = Cluster()
            self.chaos = Chaos(self.cluster)
        else:
            self.cluster = BlockingCluster()
            self.chaos = BlockingChaos(self.cluster)

    @property
    def directory(self) -> Path:
        """Of this run, made when first asked for."""
        if not self.was_asked_for_directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir(parents=True)
            self.was_asked_for_directory = True
        return self._directory

    def run_forked(
        self,
        arguments: Mapping[str, Any],
        finish: Finish,
        *,
        order: Order | None = None,
        keep: Callable[[Told], bool] = lambda told: False,
    ) -> Told:
        """Run the body in a process of its own; its directory is kept if `keep` says so."""
        wanted = order or self.order
        place = Scratch()
        try:

            def work() -> Told:
                if wanted.backend == "sim":
                    gc.freeze()
                    gc.disable()
                told, error = self._run(arguments, wanted, place.path)
                if error is not None:
                    finish(told, error)
                return told

            simulated = wanted.backend == "sim"
            told = run_forked(work, budget_s=wanted.budget_s, simulated=simulated)
            if keep(told):
                shutil.copytree(place.path, self.directory, dirs_exist_ok=True)
            return told
        finally:
            place.remove()

    def run_here(self, arguments: Mapping[str, Any]) -> tuple[Told, BaseException | None]:
        """Run the body in this very process, without a budget: for a debugger."""
        place = Scratch()
        try:
            perform_ = self._perform_async if self.is_async else self._perform_blocking
            return perform_(arguments, self.order, place.path, None)
        finally:
            place.remove()

    # --- inside, in the process of the run

    def _run(
        self,
        arguments: Mapping[str, Any],
        order: Order,
        directory: Path,
    ) -> tuple[Told, BaseException | None]:
        perform_ = self._perform_async if self.is_async else self._perform_blocking
        return perform_(arguments, order, directory, order.budget_s)

    def _perform_async(
        self,
        arguments: Mapping[str, Any],
        order: Order,
        directory: Path,
        budget_s: float | None,
    ) -> tuple[Told, BaseException | None]:
        cluster = self.cluster
        assert isinstance(cluster, Cluster)

        async def body(stage: Stage) -> None:
            cluster.bind(stage)
            fixtures = Fixtures()
            try:
                await self.function(**await fixtures.open(arguments))
            finally:
                with trio.CancelScope() as scope:
                    scope.shield = True
                    await fixtures.close()
                cluster.bind(None)

        script = _script(order, body)
        if budget_s is None:
            return perform(order, script, directory, home=self.home)
        overdue: list[BudgetSpent] = []
        scope = trio.CancelScope()

        async def cancellable(stage: Stage) -> None:
            script.token = trio.lowlevel.current_trio_token()
            with scope:
                await body(stage)
            if overdue:
                raise overdue[0]

        def ring(frame: FrameType | None) -> None:
            overdue.append(spent(budget_s, where_is(script, frame, self.home)))
            if order.backend == "sim" or script.token is None:
                raise overdue[0]
            script.token.run_sync_soon(scope.cancel)

        script.body = cancellable
        try:
            with alarm(budget_s, ring):
                return perform(order, script, directory, home=self.home)
        except BaseException as error:
            if not overdue or isinstance(error, KeyboardInterrupt):
                raise
            return _told_of(overdue[0], self.home), overdue[0]

    def _perform_blocking(
        self,
        arguments: Mapping[str, Any],
        order: Order,
        directory: Path,
        budget_s: float | None,
    ) -> tuple[Told, BaseException | None]:
        for name, value in arguments.items():
            if isinstance(value, Deferred):
                raise TestingError(f"fixture {name!r} is async: a test that uses it has to be too")
        cluster = self.cluster
        assert isinstance(cluster, BlockingCluster)
        thread = StageThread(order, directory)
        failure: BaseException | None = None

        def ring(frame: FrameType | None) -> None:
            assert budget_s is not None
            raise spent(budget_s, where_is(thread.script, frame, self.home))

        try:
            with alarm(budget_s or 0.0, ring):
                if thread.start():
                    cluster.bind(thread)
                    self.function(**arguments)
        except BaseException as error:
            failure = error
        finally:
            cluster.bind(None)
        told, found = thread.finish(failure)
        if isinstance(failure, KeyboardInterrupt):
            raise failure
        if failure is not None:
            told.kind, told.signature = "failed", signature(failure, self.home)
        return told, failure or found


def _script(order: Order, body: Callable[[Stage], Any]) -> Script:
    return Script(body=body, choice=order.choice, failover_s=order.wishes.failover_s)


def _told_of(error: BaseException, home: str) -> Told:
    return Told(kind="failed", signature=signature(error, home))
