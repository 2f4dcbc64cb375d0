"""The thread that brings files to disk: one call at a time, in order, and nobody waits in vain."""

import threading

import pytest
import trio

from rocketbed.world import sync_thread
from rocketbed.world.sync_thread import SyncThread


class Gate:
    """A blocking call that waits until it is let through."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.done: list[int] = []

    def pass_through(self, number: int) -> int:
        self.begun.set()
        assert self.open.wait(60)
        self.done.append(number)
        return number


async def test_calls_are_made_one_at_a_time_and_in_order() -> None:
    thread, gate, found = SyncThread(), Gate(), list[int]()

    async def call(number: int) -> None:
        found.append(await thread.run(gate.pass_through, number))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, number)
            await trio.testing.wait_all_tasks_blocked()
        assert not gate.done
        gate.open.set()
    assert gate.done == found == [0, 1, 2, 3, 4]


async def test_an_error_is_the_callers_and_the_next_call_works() -> None:
    thread = SyncThread()

    def fail() -> None:
        raise OSError(5, "no")

    with pytest.raises(OSError, match="no"):
        await thread.run(fail)
    assert await thread.run(threading.current_thread) is not threading.main_thread()


async def test_what_has_begun_is_not_cancelled_and_what_waits_is() -> None:
    thread, gate = SyncThread(), Gate()
    ends: list[str] = []

    async def call(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await thread.run(gate.pass_through, number)
        ends.append(f"{number} {'cancelled' if scope.cancelled_caught else 'done'}")

    scopes = [trio.CancelScope(), trio.CancelScope()]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 0, scopes[0])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(call, 1, scopes[1])
        await trio.testing.wait_all_tasks_blocked()
        for scope in scopes:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert ends == ["1 cancelled"]
        gate.open.set()
    assert ends == ["1 cancelled", "0 done"]
    assert gate.done == [0]


async def test_an_idle_thread_ends_and_another_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_thread, "IDLE_S", 0.001)
    thread = SyncThread()
    first = await thread.run(threading.current_thread)
    await trio.to_thread.run_sync(first.join, 60)
    assert not first.is_alive()
    for _ in range(200):  # some meet it at its end
        assert (await thread.run(threading.current_thread)).name == "sync"
