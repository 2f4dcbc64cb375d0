"""More connections than the process has descriptors: the store keeps what it needs."""

import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from tests.support.ports import free_port

pytestmark = pytest.mark.process
DESCRIPTORS = 256
STRANGERS = 300
DEADLINE_S = 120
LOOK_S = 0.05


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def dial(port: int) -> socket.socket:
    """A connection that says nothing; it may be closed at once."""
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def run(stack: ExitStack, command: list[str], log: Any, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends with the test."""
    process = subprocess.Popen(command, stderr=log, **options)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


async def wait_for_word(log: Path, word: str) -> None:
    """Wait until a word appears in a log."""
    while True:
        if word in await trio.Path(log).read_text():
            return
        await trio.sleep(LOOK_S)


@pytest.mark.parametrize("port_kind", ["replication", "clients"])
async def test_idle_connections_do_not_end_a_node(tmp_path: Path, port_kind: str) -> None:
    port, routes = free_port(), free_port()
    program = [sys.executable, "-m", "rocketbed"]
    command = [
        *program,
        "node",
        "--set",
        f"listenPort={port}",
        "--set",
        "autoCreateTopicEnable=true",
    ]
    command += ["--set", f"namesrvAddr=127.0.0.1:{routes}"]
    command += ["--set", f"storePathRootDir={tmp_path}/store", "--set", "brokerIP1=127.0.0.1"]
    command += ["--set", "mappedFileSizeCommitLog=1048576", "--set", "bindAddress=127.0.0.1"]
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        server = [*program, "nameserver", "--set", f"listenPort={routes}"]
        run(stack, server, subprocess.DEVNULL)
        node = run(stack, command, log, preexec_fn=few_descriptors)
        with trio.fail_after(DEADLINE_S):
            await wait_for_word(tmp_path / "log", "node.serving")
            await wait_for_word(tmp_path / "log", "broker.registered")
            for _ in range(STRANGERS):
                with suppress(OSError):
                    at = port + 1 if port_kind == "replication" else port
                    stack.enter_context(closing(dial(at)))
            word = "replication.full" if port_kind == "replication" else "remoting.full"
            await wait_for_word(tmp_path / "log", word)
            if port_kind == "replication":
                async with Producer(nameservers=f"127.0.0.1:{routes}") as sender:
                    for number in range(20):
                        sent = await sender.send(Message("T", b"%d" % number))
                        assert isinstance(sent, Sent)
        assert node.poll() is None, (tmp_path / "log").read_text()
        assert len(os.listdir(f"/proc/{node.pid}/fd")) < DESCRIPTORS
        assert "cannot be written" not in (tmp_path / "log").read_text()


async def test_node_warns_of_room_for_few_clients(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rocketbed", "node", "--set", f"listenPort={free_port()}"]
    command += ["--set", f"storePathRootDir={tmp_path / 'store'}"]
    for descriptors, is_told in ((64, True), (4096, False)):
        path = tmp_path / f"log-{descriptors}"
        with ExitStack() as stack, trio.fail_after(DEADLINE_S):
            limit = (descriptors, descriptors)
            log = stack.enter_context(path.open("wb"))
            run(
                stack,
                command,
                log,
                preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
            )
            await wait_for_word(path, "node.serving")
            assert ("node.few_connections" in path.read_text()) == is_told
