"""The threads that sync files: a limited number at a time, in order, and each wait ends."""

import errno
import os
import threading
from array import array
from pathlib import Path

import pytest
import trio

from rocketbed.world import sync_threads
from rocketbed.world.real import sync_each_slowly
from rocketbed.world.sync_threads import SyncThreads
from tests.support.native import SYNC, native


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


async def test_calls_run_one_at_a_time_and_in_order() -> None:
    thread, gate, results = SyncThreads(1), Gate(), list[int]()

    async def call(number: int) -> None:
        results.append(await thread.run(gate.pass_through, number))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, number)
            await trio.testing.wait_all_tasks_blocked()
        assert not gate.done
        gate.open.set()
    assert gate.done == results == [0, 1, 2, 3, 4]


async def test_slow_call_does_not_delay_the_next_one() -> None:
    threads, gate = SyncThreads(2), Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run, gate.pass_through, 0)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            assert await threads.run(len, "two") == 3
        gate.open.set()


async def test_calls_that_follow_each_other_share_a_thread() -> None:
    threads = SyncThreads(2)
    thread_ids = {await threads.run(threading.get_ident) for _ in range(200)}
    assert len(thread_ids) == 1


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "sync":
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", refuse)


async def test_failed_thread_start_fails_only_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = SyncThreads(2)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        with pytest.raises(OSError, match="limit of processes") as caught:
            await threads.run(len, "never")
    assert caught.value.errno == errno.EAGAIN
    assert "limit of processes" in (caught.value.strerror or "")
    assert await threads.run(len, "two") == 3


async def test_busy_thread_serves_where_no_other_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, gate, results = SyncThreads(2), Gate(), list[int]()

    async def call(number: int) -> None:
        results.append(await threads.run(gate.pass_through, number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 0)
        await trio.testing.wait_all_tasks_blocked()
        refuse_threads(monkeypatch)
        for number in range(1, 4):
            nursery.start_soon(call, number)
        await trio.testing.wait_all_tasks_blocked()
        assert not results
        gate.open.set()
    assert sorted(results) == [0, 1, 2, 3]
    assert await threads.run(len, "two") == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    threads = SyncThreads(2)

    async def use() -> None:
        with trio.fail_after(60):
            assert await threads.run(len, "two") == 3

    trio.run(use)
    if (child := os.fork()) == 0:
        end = 1
        try:
            trio.run(use)
            end = 0
        finally:
            os._exit(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_error_goes_to_the_caller_and_the_next_call_works() -> None:
    thread = SyncThreads(1)

    def fail() -> None:
        raise OSError(5, "no")

    with pytest.raises(OSError, match="no"):
        await thread.run(fail)
    assert await thread.run(threading.current_thread) is not threading.main_thread()


async def test_started_call_is_not_cancelled_and_a_waiting_one_is() -> None:
    thread, gate = SyncThreads(1), Gate()
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
    monkeypatch.setattr(sync_threads, "IDLE_S", 0.001)
    thread = SyncThreads(1)
    first = await thread.run(threading.current_thread)
    await trio.to_thread.run_sync(first.join, 60)
    assert not first.is_alive()
    for _ in range(200):  # some meet it at its end
        assert (await thread.run(threading.current_thread)).name == "sync"


@pytest.mark.parametrize("body", ["native", "python"])
def test_files_are_synced_in_order_until_one_fails(body: str, tmp_path: Path) -> None:
    sync_each = native(SYNC).sync_each if body == "native" else sync_each_slowly
    first, last = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab")
    reader, writer = os.pipe()
    try:
        for file in (first, last):
            os.write(file, b"data")
        for files, expected in (
            ([], (0, 0)),
            ([first], (1, 0)),
            ([first, last], (2, 0)),
            ([first, reader, last], (1, errno.EINVAL)),
            ([1 << 30, first], (0, errno.EBADF)),
        ):
            assert sync_each(array("i", files).tobytes()) == expected
    finally:
        for file in (first, last, reader, writer):
            os.close(file)
