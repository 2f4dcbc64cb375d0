"""Real node processes on loopback: start, SIGTERM, SIGKILL, a second one on the same directory."""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import NotConnected
from rocketbed.wire.bodies import ConsumerIdList
from rocketbed.wire.command import request
from rocketbed.wire.frame import encode
from rocketbed.wire.message import decode_messages
from rocketbed.world.real import real_world
from tests.support.broker import heartbeat_body, pull_fields, send_fields
from tests.support.native import native
from tests.support.ports import free_port

pytestmark = pytest.mark.process
DEADLINE_S = 120


def command(root: Path, port: int, *settings: str) -> list[str]:
    options = [f"storePathRootDir={root}", f"listenPort={port}", "bindAddress=127.0.0.1"]
    options += ["mappedFileSizeCommitLog=4194304", *settings]
    sets = [word for option in options for word in ("--set", option)]
    return [sys.executable, "-m", "rocketbed", "node", *sets]


@contextmanager
def node(root: Path, port: int, *settings: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(root, port, *settings), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def with_connection(port: int, use: Callable[[Connection], Awaitable[Any]]) -> Any:
    """Dial until the node listens, then use the connection."""
    world = real_world("test")
    with trio.fail_after(DEADLINE_S):
        while True:
            try:
                async with open_connection(world, ("127.0.0.1", port)) as connection:
                    return await use(connection)
            except* NotConnected:
                await trio.sleep(0.01)


async def send(connection: Connection) -> list[str]:
    offsets = []
    for number in range(20):
        sent = await connection.request(request(310, send_fields(), b"%d" % number))
        assert sent.code == 0
        offsets.append(sent.fields["queueOffset"])
    return offsets


async def pull(connection: Connection, count: int = 20) -> list[bytes]:
    """The first of a queue; what was sent last may be there a moment after its answer."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        fields = pull_fields(
            offset=len(bodies), count=count - len(bodies), flags=4 | 2, hold_ms=5000
        )
        answer = await connection.request(request(11, fields), timeout_s=DEADLINE_S)
        assert answer.code == 0
        bodies += [message.body for message in decode_messages(answer.body)]
    return bodies


BODIES = [b"%d" % number for number in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["another root", "no lock file"])
async def test_log_is_served_by_a_single_node(tmp_path: Path, variant: str) -> None:
    """Two roots may name one log, and `lock` may be deleted under a running node."""
    root, port, log = tmp_path / "store", free_port(), f"storePathCommitLog={tmp_path / 'log'}"
    with node(root, port, log) as process:
        await with_connection(port, send)
        if variant == "no lock file":
            (root / "lock").unlink()
        second = tmp_path / "other" if variant == "another root" else root
        with trio.fail_after(DEADLINE_S):
            refused = await trio.run_process(
                command(second, free_port(), log), capture_stderr=True, check=False
            )
        assert refused.returncode == 1
        assert f"{tmp_path / 'log'} is held by another process" in refused.stderr.decode()
        assert process.poll() is None
    with node(root, port, log):
        assert await with_connection(port, pull) == BODIES


async def test_sigterm_stops_cleanly_and_sigkill_loses_nothing(tmp_path: Path) -> None:
    root, port = tmp_path / "store", free_port()
    with node(root, port) as process:
        assert await with_connection(port, send) == [str(number) for number in range(20)]
        assert (root / "abort").exists()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors
    assert not (root / "abort").exists()
    with node(root, port) as process:
        assert await with_connection(port, pull) == BODIES
        assert (await with_connection(port, send))[0] == "20"
        process.kill()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
    assert (root / "abort").exists()
    with node(root, port):
        assert await with_connection(port, partial(pull, count=40)) == BODIES + BODIES
        assert (await with_connection(port, send))[0] == "40"


async def test_second_node_on_a_directory_ends_with_a_reason(tmp_path: Path) -> None:
    root, port = tmp_path / "store", free_port()
    with node(root, port):
        await with_connection(port, send)
        with trio.fail_after(DEADLINE_S):
            second = await trio.run_process(
                command(root, free_port()), capture_stderr=True, check=False
            )
        message = second.stderr.decode()
        assert second.returncode == 1
        assert "held by another process" in message
        assert "Traceback" not in message
        assert await with_connection(port, pull) == BODIES


async def come_and_go(port: int, number: int) -> None:
    """A member on a new connection, which ends in good order, by a reset, or in a frame."""
    heartbeat = encode(request(34, {}, heartbeat_body("restless", "g")))
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(heartbeat)
        assert await stream.receive_some(65_536)
        if number % 3 == 1:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif number % 3 == 2:
            await stream.send_all(heartbeat[: len(heartbeat) // 2])


async def members(connection: Connection) -> list[str]:
    answer = await connection.request(request(38, {"consumerGroup": "g"}))
    return ConsumerIdList.decode(answer.body).consumer_id_list


async def test_reconnecting_member_leaves_nothing_and_delays_no_other(
    tmp_path: Path,
) -> None:
    root, port = tmp_path / "store", free_port()
    with node(root, port) as process:
        descriptors = Path(f"/proc/{process.pid}/fd")

        async def scenario(stays: Connection) -> None:
            beat = request(34, {}, heartbeat_body("stays", "g"))
            assert (await stays.request(beat)).code == 0
            await send(stays)
            before = len(os.listdir(descriptors))
            for number in range(300):
                await come_and_go(port, number)
                assert (await stays.request(request(310, send_fields(), b"x"))).code == 0
            while len(os.listdir(descriptors)) > before or await members(stays) != ["stays"]:
                await send(stays)

        await with_connection(port, scenario)
        assert process.poll() is None


@pytest.mark.parametrize("value", ["", "1", "0"])
async def test_node_logs_which_send_body_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The native one unless `RB_NATIVE=0`. Twenty sends of one read are plain ones."""
    native()
    monkeypatch.setenv("RB_NATIVE", value)
    port = free_port()
    with node(tmp_path, port) as process:
        assert await with_connection(port, send) == [str(number) for number in range(20)]
        assert await with_connection(port, pull) == BODIES
        process.terminate()
        assert process.stderr is not None
        log_text = process.stderr.read()
    (line,) = [line for line in log_text.splitlines() if "send.body" in line]
    assert line.partition("which=")[2].startswith("python" if value == "0" else "native")
