"""Guarantees for a node, checked on the operating system and in the simulator alike."""

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.world.api import World
from rocketbed.world.real import run_real

Body = Callable[[World, str], Awaitable[None]]
Runner = Callable[[Body], None]


@pytest.fixture(params=["real", "simulated"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    """Runs a body with a world and an existing directory that is empty."""

    def run_on_system(body: Body) -> None:
        async def main(world: World) -> None:
            await body(world, str(tmp_path))

        run_real(main, "contract")

    def run_in_simulator(body: Body) -> None:
        async def main(world: World) -> None:
            world.disk.makedirs("/contract")
            await body(world, "/contract")

        assert run_solo(main).outcome == "ended"

    return run_on_system if request.param == "real" else run_in_simulator


def test_a_file_reads_back_what_was_written(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        assert (file.size(), file.path) == (0, f"{root}/a")
        file.write_at(5, b"world")
        file.write_at(0, memoryview(b"hello"))
        file.write_at(10, bytearray(b"!"))
        assert file.read_at(0, 100) == b"helloworld!"
        assert file.read_at(3, 4) == b"lowo"
        assert file.read_at(11, 4) == b""
        assert file.read_at(50, 4) == b""
        assert file.read_cached(0, 5) == b"hello"
        buffer = memoryview(bytearray(4))
        assert file.fill_cached(1, buffer)
        assert bytes(buffer) == b"ello"
        assert not file.fill_cached(file.size() - 3, buffer), "there are not so many"
        assert file.size() == 11
        file.close()
        file.close()
        with pytest.raises((ValueError, OSError)):
            file.read_at(0, 1)
        reopened = world.disk.open(f"{root}/a")
        assert reopened.read_at(0, 11) == b"helloworld!"
        reopened.close()

    run(body)


def test_a_gap_reads_as_zeros(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        file.write_at(10_000, b"x")
        assert file.read_at(0, 20_000) == bytes(10_000) + b"x"
        file.close()

    run(body)


def test_allocate_extends_and_keeps_what_is_there(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        file.write_at(0, b"kept")
        file.allocate(1 << 20)
        assert file.size() == 1 << 20
        assert file.read_at(0, 8) == b"kept\0\0\0\0"
        assert file.read_at((1 << 20) - 4, 8) == bytes(4)
        file.allocate(4)
        assert file.size() == 1 << 20
        file.close()

    run(body)


def test_truncate_and_zero(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        file.write_at(0, b"x" * 8192)
        file.zero(100, 4000)
        assert file.read_at(0, 8192) == b"x" * 100 + bytes(4000) + b"x" * 4092
        file.truncate(50)
        assert file.size() == 50
        file.truncate(200)
        assert file.read_at(0, 300) == b"x" * 50 + bytes(150)
        file.close()

    run(body)


def test_a_long_range_is_zeroed(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        file.write_at(0, b"x" * (3 << 20))
        file.zero(1, (2 << 20) + 1)
        assert file.size() == 3 << 20
        assert file.read_at(0, 2) == b"x\0"
        assert file.read_at((2 << 20) + 1, 3) == b"\0xx"
        file.close()

    run(body)


def test_missing_names_raise(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        disk = world.disk
        with pytest.raises(FileNotFoundError):
            disk.open(f"{root}/absent")
        with pytest.raises(FileNotFoundError):
            disk.open(f"{root}/no/directory", create=True)
        with pytest.raises(FileNotFoundError):
            disk.unlink(f"{root}/absent")
        with pytest.raises(FileNotFoundError):
            disk.rename(f"{root}/absent", f"{root}/b")
        with pytest.raises(FileNotFoundError):
            disk.rmdir(f"{root}/absent")
        with pytest.raises(FileNotFoundError):
            await disk.sync_dir(f"{root}/absent")
        for writable in (True, False):
            with pytest.raises(IsADirectoryError):
                disk.open(root, writable=writable)
        assert disk.listdir(f"{root}/absent") == []
        assert not disk.exists(f"{root}/absent")

    run(body)


def test_directories(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        disk = world.disk
        disk.makedirs(f"{root}/b/c")
        disk.makedirs(f"{root}/b/c")
        for name in ("z", "m", "a"):
            disk.open(f"{root}/b/{name}", create=True).close()
        assert disk.listdir(f"{root}/b") == ["a", "c", "m", "z"]
        assert disk.is_dir(f"{root}/b/c")
        assert disk.is_dir(f"{root}/b/c/")
        assert not disk.is_dir(f"{root}/b/a")
        assert [disk.is_file(f"{root}/b/{name}") for name in ("a", "c", "absent")] == [
            True,
            False,
            False,
        ]
        assert disk.exists(f"{root}/b/a")
        await disk.sync_dir(f"{root}/b")
        with pytest.raises(OSError, match="not empty") as caught:
            disk.rmdir(f"{root}/b")
        assert caught.value.errno == errno.ENOTEMPTY
        disk.rmdir(f"{root}/b/c")
        assert disk.listdir(f"{root}/b") == ["a", "m", "z"]

    run(body)


def test_files_are_synced_together_and_a_closed_one_is_refused(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        disk = world.disk
        files = [disk.open(f"{root}/{name}", create=True) for name in "abc"]
        for file in files:
            file.write_at(0, b"data")
        await disk.sync_files([])
        await disk.sync_files(files)
        files[1].close()
        with pytest.raises(ValueError, match="closed"):
            await disk.sync_files(files)
        assert [files[at].read_at(0, 4) for at in (0, 2)] == [b"data", b"data"]

    run(body)


def test_directory_is_renamed_with_its_contents(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        disk = world.disk
        disk.makedirs(f"{root}/b/c")
        disk.makedirs(f"{root}/kept")
        disk.open(f"{root}/b/c/a", create=True).close()
        disk.open(f"{root}/file", create=True).close()
        with pytest.raises(NotADirectoryError):
            disk.listdir(f"{root}/file")
        with pytest.raises(IsADirectoryError):
            disk.rename(f"{root}/file", f"{root}/b")
        with pytest.raises(NotADirectoryError):
            disk.rename(f"{root}/b/c/a", f"{root}/file/a")
        disk.rename(f"{root}/b", f"{root}/kept/b.1")
        assert disk.listdir(root) == ["file", "kept"]
        assert disk.listdir(f"{root}/kept") == ["b.1"]
        assert disk.listdir(f"{root}/kept/b.1/c") == ["a"]
        assert disk.is_file(f"{root}/kept/b.1/c/a")
        assert not disk.exists(f"{root}/b/c")
        disk.makedirs(f"{root}/b")
        disk.open(f"{root}/b/new", create=True).close()
        await disk.sync_dir(f"{root}/b")
        assert disk.listdir(root) == ["b", "file", "kept"]

    run(body)


def test_rename_replaces_and_an_open_file_outlives_its_name(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        disk = world.disk
        old = disk.open(f"{root}/config", create=True)
        old.write_at(0, b"old")
        new = disk.open(f"{root}/config.tmp", create=True)
        new.write_at(0, b"newer")
        await new.sync()
        disk.rename(f"{root}/config.tmp", f"{root}/config")
        assert disk.listdir(root) == ["config"]
        assert disk.open(f"{root}/config").read_at(0, 9) == b"newer"
        assert new.has_name()
        assert not old.has_name()
        assert old.read_at(0, 9) == b"old"
        disk.unlink(f"{root}/config")
        assert not new.has_name()
        assert new.read_at(0, 9) == b"newer"
        old.close()
        new.close()

    run(body)


def test_a_file_may_be_closed_while_it_syncs(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        file.write_at(0, b"x" * 100_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.sync)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()  # by the second, the sync has begun
            file.close()
        assert world.disk.open(f"{root}/a").size() == 100_000

    run(body)


def test_a_file_opened_for_reading_refuses_writes(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        world.disk.open(f"{root}/a", create=True).close()
        file = world.disk.open(f"{root}/a", writable=False)
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            file.write_at(0, b"x")
        assert caught.value.errno == errno.EBADF
        file.close()

    run(body)


def test_the_lock_excludes_until_it_is_released(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        lock = world.disk.lock(f"{root}/lock")
        assert lock is not None
        assert world.disk.lock(f"{root}/lock") is None
        assert world.disk.open(f"{root}/lock").read_at(0, 10) == b"lock"
        lock.release()
        lock.release()
        second_lock = world.disk.lock(f"{root}/lock")
        assert second_lock is not None
        second_lock.release()

    run(body)


def test_directory_is_locked_without_a_name_in_it(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        world.disk.makedirs(f"{root}/d")
        lock = world.disk.lock_dir(f"{root}/d")
        assert lock is not None
        assert world.disk.lock_dir(f"{root}/d") is None
        assert world.disk.listdir(f"{root}/d") == []
        lock.release()
        lock.release()
        second_lock = world.disk.lock_dir(f"{root}/d")
        assert second_lock is not None
        second_lock.release()

    run(body)


def test_modification_time_and_usage(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        before = world.clock.wall_ms()
        file = world.disk.open(f"{root}/a", create=True)
        file.write_at(0, b"x")
        assert before - 1000 <= file.modified_ms() <= world.clock.wall_ms() + 1000
        file.set_modified_ms(1_600_000_000_123)
        assert file.modified_ms() == 1_600_000_000_123
        file.read_ahead(0, 1)
        usage = world.disk.usage(f"{root}/not/there/yet")
        assert 0 < usage.free <= usage.total
        assert 0 <= usage.used_percent <= 100
        assert not usage.read_only
        file.close()

    run(body)


def test_streams_keep_order_and_tell_the_end(run: Runner) -> None:
    sent = bytes(range(256)) * 4096

    async def body(world: World, root: str) -> None:
        network = world.network
        listener = await network.listen("localhost", 0)
        host, port = listener.address

        async def answer() -> None:
            stream = await listener.accept()
            assert network.local_address(stream) == (host, port)
            received = bytearray()
            while part := await stream.receive_some(5000):
                received += part
            assert received == sent
            await stream.send_all(b"done")
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            stream = await network.connect(host, port)
            assert network.peer_address(stream) == (host, port)
            await stream.send_all(sent)
            await stream.send_eof()
            parts = []
            while part := await stream.receive_some():
                parts.append(part)
            assert b"".join(parts) == b"done"
            await stream.aclose()
            with pytest.raises(trio.ClosedResourceError):
                await stream.send_all(b"x")
        await listener.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    run(body)


def test_missing_listener_is_refused_and_a_taken_port_reported(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        listener = await world.network.listen("localhost", 0)
        host, port = listener.address
        with pytest.raises(OSError, match="already in use") as caught:
            await world.network.listen("localhost", port)
        assert caught.value.errno == errno.EADDRINUSE
        assert str(port) in str(caught.value)
        await listener.aclose()
        with pytest.raises(ConnectionRefusedError):
            await world.network.connect(host, port)
        assert await world.network.resolve(host) == [host]

    run(body)


@pytest.mark.parametrize("host", ["ns..svc", "a" * 64, "b\ufffd"])
def test_impossible_host_name_cannot_be_reached(run: Runner, host: str) -> None:
    async def body(world: World, root: str) -> None:
        for call in (
            lambda: world.network.resolve(host),
            lambda: world.network.connect(host, 1),
        ):
            with pytest.raises(OSError, match="host"):
                await call()

    run(body)


def test_closing_wakes_the_receiver(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        listener = await world.network.listen("localhost", 0)
        stream = await world.network.connect(*listener.address)
        second_stream = await listener.accept()

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await stream.aclose()
        assert await second_stream.receive_some() == b""
        await second_stream.aclose()
        await listener.aclose()

    run(body)


def test_a_range_of_a_file_is_sent(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        file = world.disk.open(f"{root}/a", create=True)
        content = bytes(range(251)) * 3000
        file.write_at(0, content)
        listener = await world.network.listen("localhost", 0)

        async def serve() -> None:
            stream = await listener.accept()
            await world.network.send_file(stream, file, 17, 700_000)
            with pytest.raises(OSError, match="ends at"):
                await world.network.send_file(stream, file, len(content) - 1, 10)
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            stream = await world.network.connect(*listener.address)
            received = bytearray()
            while part := await stream.receive_some():
                received += part
            assert received[:700_000] == content[17:700_017]
            await stream.aclose()
        await listener.aclose()
        file.close()

    run(body)


def test_offload_gives_results_and_errors(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        assert await world.offload(sorted, [3, 1, 2]) == [1, 2, 3]
        with pytest.raises(ZeroDivisionError):
            await world.offload(divmod, 1, 0)

    run(body)


def test_clocks_go_forward(run: Runner) -> None:
    async def body(world: World, root: str) -> None:
        wall, elapsed = world.clock.wall_ms(), world.clock.monotonic()
        await trio.sleep(0.02)
        assert world.clock.monotonic() - elapsed >= 0.019
        assert world.clock.wall_ms() - wall >= 15
        assert world.process.pid > 0
        assert world.process.boot_id
        assert not world.process.stop_requested.is_set()
        world.mark("here")
        world.log.info("world.checked", path=root)

    run(body)


def test_sigterm_requests_a_stop_and_errors_propagate() -> None:
    async def main(world: World) -> int:
        os.kill(os.getpid(), 15)
        await world.process.stop_requested.wait()
        return 7

    assert run_real(main, "signals") == 7

    async def fails(world: World) -> None:
        raise LookupError(world.name)

    with pytest.raises(LookupError, match="signals"):
        run_real(fails, "signals")
