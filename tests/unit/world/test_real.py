"""Behaviour of the operating system's world only: cold data, short writes, sockets, its log."""

import errno
import logging
import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trio

from rocketbed.world.api import File, NotAFile, Stream, World
from rocketbed.world.logs import render
from rocketbed.world.real import RealDisk, real_world
from rocketbed.world.sockets import SEND_STEP, RealListener, usable_source


@pytest.fixture
def world() -> World:
    return real_world("real")


def drop_from_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


async def send_and_receive(world: World, file: File, offset: int, size: int) -> bytes:
    listener = await world.network.listen("127.0.0.1", 0)
    received = bytearray()

    async def receive() -> None:
        stream = await listener.accept()
        async with stream:
            while part := await stream.receive_some():
                received.extend(part)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        stream = await world.network.connect(*listener.address)
        await world.network.send_file(stream, file, offset, size)
        await stream.aclose()
    await listener.aclose()
    return bytes(received)


def test_pipes_sockets_and_devices_are_not_files(world: World, tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer; the node would take no signal meanwhile."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for name in ("pipe", "zero", "socket"):
        path = str(tmp_path / name)
        assert world.disk.exists(path)
        assert not world.disk.is_file(path)
        for writable in (False, True):
            with pytest.raises(NotAFile, match=path):
                world.disk.open(path, create=writable, writable=writable)
        with pytest.raises(NotAFile, match=path):
            world.disk.lock(path)


async def test_cold_data_is_recognised_read_and_sent(world: World, tmp_path: Path) -> None:
    content = os.urandom(3 * SEND_STEP)
    (tmp_path / "a").write_bytes(content)
    drop_from_cache(tmp_path / "a")
    file = world.disk.open(str(tmp_path / "a"))
    assert file.read_cached(0, 4096) in (None, content[:4096])  # a tmpfs drops nothing
    buffer = memoryview(bytearray(4096))
    assert not file.fill_cached(0, buffer) or buffer == content[:4096]
    assert (
        await send_and_receive(world, file, 1000, 2 * SEND_STEP)
        == content[1000 : 1000 + 2 * SEND_STEP]
    )
    drop_from_cache(tmp_path / "a")
    file.read_ahead(0, len(content))
    assert file.read_at(0, len(content)) == content
    file.close()


async def test_file_without_a_descriptor_is_sent_by_copy(world: World, tmp_path: Path) -> None:
    class Wrapped:
        """Only what `send_file` may use of any file."""

        path = "wrapped"

        def read_cached(self, offset: int, size: int) -> bytes | None:
            return None if offset % 2 else b"x" * size

        def read_at(self, offset: int, size: int) -> bytes:
            return b"y" * size

    wrapped: File = Wrapped()  # type: ignore[assignment]
    assert await send_and_receive(world, wrapped, 0, 10) == b"x" * 10
    assert await send_and_receive(world, wrapped, 1, 10) == b"y" * 10


async def test_sendfile_in_pieces(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(100_000)
    (tmp_path / "a").write_bytes(content)
    file = world.disk.open(str(tmp_path / "a"))
    real_sendfile = os.sendfile
    calls = 0

    def reluctant(out: int, source: int, offset: int, count: int) -> int:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise BlockingIOError
        return real_sendfile(out, source, offset, min(count, 7000))

    monkeypatch.setattr(os, "sendfile", reluctant)
    assert await send_and_receive(world, file, 3, 90_000) == content[3:90_003]
    assert calls >= 2 * 90_000 // 7000
    file.close()


async def send_for_ever(world: World, stream: Stream, file: File) -> None:
    while True:
        await world.network.send_file(stream, file, 0, file.size())


async def test_sending_to_a_peer_that_left_breaks(world: World, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    file = world.disk.open(str(tmp_path / "a"))
    listener = await world.network.listen("127.0.0.1", 0)
    stream = await world.network.connect(*listener.address)
    await (await listener.accept()).aclose()
    with pytest.raises(trio.BrokenResourceError):
        await send_for_ever(world, stream, file)
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await world.network.send_file(stream, file, 0, 100)
    await listener.aclose()
    file.close()


def test_writes_go_on_after_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, data, at: real_pwrite(descriptor, data[:1000], at)
    )
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    content = os.urandom(3500)
    file.write_at(5, content)
    assert file.read_at(5, 4000) == content
    file.close()


def hold_lock(path: str, pipe: Connection) -> None:
    lock = RealDisk().lock(path)
    pipe.send(lock is not None)
    pipe.recv()


def test_another_process_holds_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_lock, args=(path, theirs))
    process.start()
    try:
        assert ours.recv() is True
        disk = RealDisk()
        assert disk.lock(path) is None
        ours.send("release")
        process.join()
        lock = disk.lock(path)
        assert lock is not None
        lock.release()
    finally:
        process.kill()
        process.join()


async def test_accept_waits_while_there_are_no_descriptors(world: World) -> None:
    errors = [errno.EMFILE, errno.ECONNABORTED]
    listener = await world.network.listen("127.0.0.1", 0)
    assert isinstance(listener, RealListener)
    server = listener._server

    class Exhausted:
        """A server socket that fails twice."""

        async def accept(self) -> object:
            if errors:
                raise OSError(errors.pop(), "as if")
            return await server.accept()

        def close(self) -> None:
            server.close()

    listener._server = Exhausted()  # type: ignore[assignment]
    stream = await world.network.connect(*listener.address)
    accepted = await listener.accept()
    assert errors == []
    await accepted.aclose()
    await stream.aclose()
    await listener.aclose()


async def test_names_resolve_and_unknown_ones_do_not(world: World) -> None:
    assert await world.network.resolve("127.0.0.1") == ["127.0.0.1"]
    assert set(await world.network.resolve("localhost")) <= {"127.0.0.1", "::1"}
    with pytest.raises(socket.gaierror):
        await world.network.resolve("no-such-host.invalid")


def test_a_stream_of_another_network_has_no_address(world: World) -> None:
    stream, _ = trio.testing.memory_stream_pair()
    with pytest.raises(TypeError, match="no stream of this network"):
        world.network.peer_address(stream)


def test_log_lines_name_the_event_and_its_fields(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketbed")
    world.log.debug("store.written", size=1)
    world.log.info("store.recovered", offset=4096, path="/a b", reason='say "no"', empty="")
    world.log.error("replication.refused")
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "rocketbed.store",
            "INFO",
            r'store.recovered offset=4096 path="/a b" reason="say \"no\"" empty=""',
        ),
        ("rocketbed.replication", "ERROR", "replication.refused"),
    ]
    assert caplog.records[0].__dict__["node"] == "real"
    assert render("a.b", {"text": "one\ntwo"}) == r'a.b text="one\ntwo"'


async def peer_of(source: str, listens_on: str) -> tuple[str, int]:
    """The address that a server on `listens_on` sees a client of this source have."""
    server = await real_world("server").network.listen(listens_on, 0)
    client = await real_world("client", source).network.connect(listens_on, server.address[1])
    accepted = await server.accept()
    async with client, accepted:
        peer_address = real_world("server").network.peer_address(accepted)
    await server.aclose()
    return peer_address


async def test_connections_go_out_from_the_source() -> None:
    assert (await peer_of("127.200.3.4", "127.200.5.6"))[0] == "127.200.3.4"
    assert (await peer_of("", "127.0.0.1"))[0] == "127.0.0.1"


async def test_source_that_cannot_reach_the_peer_is_skipped() -> None:
    assert (await peer_of("192.0.2.1", "127.0.0.1"))[0] == "127.0.0.1"
    assert (await peer_of("::1", "127.0.0.1"))[0] == "127.0.0.1"


def test_only_one_specific_address_is_a_source() -> None:
    assert [usable_source(host) for host in ("", "0.0.0.0", "::", "broker.example")] == [""] * 4
    assert [usable_source(host) for host in ("127.1.2.3", "::1")] == ["127.1.2.3", "::1"]


async def test_sockets_may_be_made_elsewhere() -> None:
    sockets: list[socket.socket] = []

    def make(family: int) -> socket.socket:
        sockets.append(socket.socket(family, socket.SOCK_STREAM))
        return sockets[-1]

    network = real_world("elsewhere", new_socket=make).network
    server = await network.listen("127.0.0.1", 0)
    client = await network.connect(*server.address)
    assert len(sockets) == 2
    await client.aclose()
    await server.aclose()
