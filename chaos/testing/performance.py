"""One run of a test's body, in the process that was made for it: with fixtures, and a budget."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import trio

from rocketbed.chaos.testing.blocking import BlockingCluster, StageThread
from rocketbed.chaos.testing.cluster import Cluster
from rocketbed.chaos.testing.errors import BudgetSpent, TestingError
from rocketbed.chaos.testing.fixtures import Deferred, Fixtures
from rocketbed.chaos.testing.hang import alarm, is_running, spent, where_is
from rocketbed.chaos.testing.order import Order, Told
from rocketbed.chaos.testing.perform import perform, signature
from rocketbed.chaos.testing.script import Script
from rocketbed.chaos.testing.stage import Stage

BUDGET: Final = "budget"
"""Signature of a run that was over its budget."""
Overdue = Callable[[BudgetSpent], NoReturn]
"""Leaves the process at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The function of a test."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    """Of its arguments; fixtures that it uses without naming them are not among these."""
    home: str
    """The file it stands in."""

    def call(self, values: Mapping[str, Any]) -> Any:
        """Call it with those values that are its arguments."""
        return self.function(**{name: values[name] for name in self.names})


class AsyncPerformance:
    """A body that is an async function."""

    def __init__(self, order: Order, body: Body, directory: Path, cluster: Cluster) -> None:
        self._order = order
        self._test = body
        self._home = body.home
        self._directory = directory
        self._cluster = cluster
        self._arguments: Mapping[str, Any] = {}
        self._script = Script(
            body=self._body, choice=order.choice, failover_s=order.wishes.failover_s
        )

    def run(
        self, arguments: Mapping[str, Any], overdue: Overdue | None
    ) -> tuple[Told, BaseException | None]:
        """Run it. Without `overdue` it has all the time there is."""
        self._arguments = arguments
        order, script = self._order, self._script
        if overdue is None:
            return perform(order, script, self._directory, home=self._home)

        def ring(frame: FrameType | None) -> None:
            error = spent(order.budget_s, where_is(script, frame, self._home))
            if order.backend == "sim" or script.token is None or script.scope is None:
                overdue(error)  # nothing of it outlives this process
            script.failure = error
            if is_running(frame, self._home):
                raise error
            script.token.run_sync_soon(script.scope.cancel)

        with alarm(order.budget_s, ring):
            told, failure = perform(order, script, self._directory, home=self._home)
        if isinstance(failure, BudgetSpent):
            told.signature = BUDGET
        return told, failure

    async def _body(self, stage: Stage) -> None:
        self._cluster.bind(stage)
        fixtures = Fixtures()
        try:
            await self._test.call(await fixtures.open(self._arguments))
        finally:
            with trio.CancelScope(shield=True):
                await fixtures.close()
            self._cluster.bind(None)


class BlockingPerformance:
    """A body that is a plain function: the cluster is in a thread beside it."""

    def __init__(self, order: Order, body: Body, directory: Path, cluster: BlockingCluster) -> None:
        self._order = order
        self._test = body
        self._home = body.home
        self._cluster = cluster
        self._thread = StageThread(order, directory)

    def run(
        self, arguments: Mapping[str, Any], overdue: Overdue | None
    ) -> tuple[Told, BaseException | None]:
        """Run it. Without `overdue` it has all the time there is."""
        for name, value in arguments.items():
            if isinstance(value, Deferred):
                raise TestingError(
                    f"fixture {name!r} is an async function: a test that uses it has to be one too"
                )
        thread, order = self._thread, self._order

        def ring(frame: FrameType | None) -> None:
            raise spent(order.budget_s, where_is(thread.script, frame, self._home))

        failure: BaseException | None = None
        try:
            with alarm(0.0 if overdue is None else order.budget_s, ring):
                if thread.start():
                    self._cluster.bind(thread)
                    self._test.call(arguments)
        except BaseException as error:
            failure = error
        self._cluster.bind(None)
        told, found = thread.finish(failure)
        if isinstance(failure, KeyboardInterrupt):
            raise failure
        if failure is not None:
            told.kind = "failed"
            is_late = isinstance(failure, BudgetSpent)
            told.signature = BUDGET if is_late else signature(failure, self._home)
        return told, failure or found
