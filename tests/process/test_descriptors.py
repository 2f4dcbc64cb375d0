"""More connections than the process has descriptors: the store keeps what it needs."""

import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path

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


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def dial(port: int) -> socket.socket:
    """A connection that says nothing; it may be closed at once."""
    return socket.create_connection(("127.0.0.1", port), timeout=10)


@pytest.mark.parametrize("which", ["replication", "clients"])
async def test_idle_connections_do_not_end_a_node(tmp_path: Path, which: str) -> None:
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
        nameserver = subprocess.Popen(
            [*program, "nameserver", "--set", f"listenPort={routes}"], stderr=subprocess.DEVNULL
        )
        stack.callback(nameserver.wait)
        stack.callback(nameserver.terminate)
        node = subprocess.Popen(command, stderr=log, preexec_fn=few_descriptors)
        stack.callback(node.wait)
        stack.callback(node.terminate)
        with trio.fail_after(DEADLINE_S):
            while b"node.serving" not in (tmp_path / "log").read_bytes():
                assert node.poll() is None, (tmp_path / "log").read_text()
                await trio.sleep(0.05)
            for _ in range(STRANGERS):
                with suppress(OSError):
                    at = port + 1 if which == "replication" else port
                    stack.enter_context(closing(dial(at)))
            word = "replication.full" if which == "replication" else "remoting.full"
            while word not in (tmp_path / "log").read_text():
                await trio.sleep(0.05)
            if which == "replication":
                async with Producer(nameservers=f"127.0.0.1:{routes}") as sender:
                    for number in range(20):
                        sent = await sender.send(Message("T", b"%d" % number))
                        assert isinstance(sent, Sent)
        assert node.poll() is None, (tmp_path / "log").read_text()
        assert len(os.listdir(f"/proc/{node.pid}/fd")) < DESCRIPTORS
        assert "cannot be written" not in (tmp_path / "log").read_text()
