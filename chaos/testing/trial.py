"""One test at one backend and seed: what its fixtures are, and how it is run.

The fixtures' values are made in pytest's process and bound to a cluster in the process of the run:
what a plain fixture of the user's keeps is the same object there.
"""

import gc
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rocketbed.chaos.host.scratch import Scratch
from rocketbed.chaos.testing.blocking import BlockingChaos, BlockingCluster
from rocketbed.chaos.testing.child import run_forked
from rocketbed.chaos.testing.cluster import Cluster
from rocketbed.chaos.testing.errors import BudgetSpent
from rocketbed.chaos.testing.faults import Chaos
from rocketbed.chaos.testing.order import Order, Told
from rocketbed.chaos.testing.performance import BUDGET, AsyncPerformance, BlockingPerformance, Body

Finish = Callable[[Told, BaseException | None], None]
"""Called when the run is over, where it was: to render its error, and to keep what was logged."""


class Trial:
    """What stands behind the fixtures of one test."""

    def __init__(
        self,
        order: Order,
        function: Callable[..., Any],
        home: str,
        directory: Path,
        *,
        names: Sequence[str],
        is_async: bool,
    ) -> None:
        """`home` is the file of the test, `directory` where its run goes if it is kept, `names`
        are the function's arguments."""
        self.function = function
        self.names = tuple(names)
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
        quiet: bool = False,
        keep: Callable[[Told], bool] = lambda told: False,
    ) -> Told:
        """Run the body in a process of its own; its directory is kept if `keep` says so.

        `quiet`: what it prints past pytest is not shown.
        """
        wanted = order or self.order
        place = Scratch()
        try:

            def work(leave: Callable[[Told], NoReturn]) -> Told:
                if quiet:
                    _silence()
                if wanted.backend == "sim":
                    gc.freeze()
                    gc.disable()

                def overdue(error: BudgetSpent) -> NoReturn:
                    told = Told(kind="failed", signature=BUDGET, wall_s=wanted.budget_s)
                    finish(told, error)
                    leave(told)

                told, error = self._performance(wanted, place.path).run(arguments, overdue)
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
            return self._performance(self.order, place.path).run(arguments, None)
        finally:
            place.remove()

    def _performance(self, order: Order, directory: Path) -> AsyncPerformance | BlockingPerformance:
        body = Body(function=self.function, names=self.names, home=self.home)
        if isinstance(self.cluster, Cluster):
            return AsyncPerformance(order, body, directory, self.cluster)
        return BlockingPerformance(order, body, directory, self.cluster)


def _silence() -> None:
    """What is written to standard output and error from now on is lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
