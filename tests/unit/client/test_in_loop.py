"""A program's function in its asyncio loop, called by the client's thread."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from rocketbed.asyncio_loop import InLoop, Loop
from rocketbed.client.messages import Received
from rocketbed.portal import Portal


class Here:
    """Loop and portal in one: what is posted is done at once, but for what is to be held back."""

    def __init__(self) -> None:
        self.loop = self
        self.held: list[Callable[[], object]] = []
        self.is_holding = False
        self.ended: list[Callable[[Any], object]] = []
        self.state = "runs"

    def post(self, function: Callable[[], object]) -> None:
        if self.is_holding and getattr(function, "__name__", "") == "cancel":
            self.held.append(function)
        else:
            function()

    def create_task(self, coroutine: Any, context: object) -> Any:
        coroutine.close()
        return self

    # --- of the task

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        self.ended.append(function)

    def done(self) -> bool:
        return self.state != "runs"

    def cancelled(self) -> bool:
        return self.state == "cancelled"

    def exception(self) -> None:
        return None

    def cancel(self) -> None:
        if not self.done():
            self.end("returned")  # a function that does not let itself be cancelled

    def end(self, state: str) -> None:
        self.state = state
        for function in self.ended:
            function(self)


@pytest.mark.parametrize("is_late", [True, False], ids=["it returned first", "it was cancelled"])
async def test_result_before_a_cancellation_is_processed(is_late: bool) -> None:
    """The end of a function and the stop of its client may meet between two threads."""
    here = Here()
    here.is_holding = is_late

    async def handle(message: Received) -> None:
        pass

    in_loop = InLoop(handle, cast(Portal, here), cast(Loop, here))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            async def stop() -> None:
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked()
                if is_late:
                    here.end("returned")

            nursery.start_soon(stop)
            await in_loop(cast(Received, None), lambda: None)
    assert scope.cancelled_caught is not is_late
    for function in here.held:
        function()
