"""A real node on a volume whose power is cut: what the trace calls durable is there afterwards."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.process.disk.faults import DiskFaults, join_environments
from rocketbed.chaos.backends.process.disk.format import DiskRule
from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.host.janitor.record import Ledger
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import ConnectionLost, NotConnected
from rocketbed.wire.command import request
from rocketbed.wire.message import decode_messages
from rocketbed.world.real import real_world
from tests.support.broker import pull_fields, send_fields
from tests.support.ports import free_port
from tests.support.shim import written_ends

pytestmark = pytest.mark.slow

DEADLINE_S = 60


class Machine:
    """A volume, the faults of its disk, and the node that runs on it."""

    def __init__(self, run: Ledger) -> None:
        self.run = run
        self.volume = Volume.create(run.directory / "b1", run=run)
        self.faults = DiskFaults(run.directory / "faults", root=self.volume.path)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = [
            f"storePathRootDir={self.volume.path / 'store'}",
            f"listenPort={self.port}",
            "bindAddress=127.0.0.1",
            "mappedFileSizeCommitLog=4194304",
            "flushDiskType=SYNC_FLUSH",
        ]
        sets = [word for setting in settings for word in ("--set", setting)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rocketbed", "node", *sets],
            env=join_environments(os.environ, self.run.environment(), self.faults.environment()),
            stderr=subprocess.DEVNULL,
        )

    def cut(self) -> None:
        """Power off and on again; the node is gone."""
        assert self.process is not None
        self.volume.power_cut()
        self.process.kill()
        assert self.process.wait(DEADLINE_S) == -signal.SIGKILL
        self.volume.remount()

    async def use(self, action: Callable[[Connection], Awaitable[None]]) -> None:
        """Dial until the node listens, then use the connection."""
        world = real_world("test")
        with trio.fail_after(DEADLINE_S):
            while True:
                try:
                    async with open_connection(world, ("127.0.0.1", self.port)) as connection:
                        await action(connection)
                        return
                except* NotConnected:
                    await trio.sleep(0.01)

    def log_end(self, *, synced: bool) -> int:
        """Return the end of the log's first segment, written or synced, by the trace."""
        (path,) = (one for one in written_ends(self.faults) if "/commitlog/" in one)
        ends = written_ends(self.faults)[path]
        return ends.synced if synced else ends.written

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.volume.destroy()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Ledger.begin(tmp_path / "runs") as run:
        machine = Machine(run)
        yield machine
        machine.close()


async def send_ten(connection: Connection) -> None:
    for number in range(10):
        sent = await connection.request(request(310, send_fields(), b"%d" % number))
        assert sent.code == 0


async def bodies(machine: Machine) -> list[bytes]:
    bodies_read: list[bytes] = []

    async def pull(connection: Connection) -> None:
        held = pull_fields(flags=4 | 2, hold_ms=20_000)
        pulled = await connection.request(request(11, held), timeout_s=DEADLINE_S)
        bodies_read.extend(message.body for message in decode_messages(pulled.body))

    await machine.use(pull)
    return bodies_read


TEN = [b"%d" % number for number in range(10)]


@pytest.mark.ci
async def test_durable_bytes_of_the_trace_survive(machine: Machine) -> None:
    machine.start()
    await machine.use(send_ten)
    durable = machine.log_end(synced=True)
    assert durable == machine.log_end(synced=False) > 0
    segment = machine.volume.path / "store" / "commitlog" / f"{0:020}"
    before = segment.read_bytes()[:durable]
    machine.cut()
    assert segment.read_bytes()[:durable] == before
    machine.start()
    assert await bodies(machine) == TEN


async def test_a_lying_disk_loses_what_it_promised(machine: Machine) -> None:
    machine.start()
    await machine.use(send_ten)
    durable = machine.log_end(synced=True)
    machine.faults.set_rules([DiskRule(operation="sync", effect="lose", path="*/commitlog/*")])
    await machine.use(send_ten)
    assert machine.log_end(synced=True) == durable < machine.log_end(synced=False)
    assert "lost" in {one.kind for one in machine.faults.flush_trace()}
    machine.cut()
    machine.faults.set_rules([])
    machine.start()
    assert await bodies(machine) == TEN


async def test_node_with_a_failed_sync_ends_without_loss(
    machine: Machine,
) -> None:
    machine.start()
    await machine.use(send_ten)
    machine.faults.set_rules([DiskRule(operation="sync", path="*/commitlog/*")])

    async def try_one_more(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):
            await connection.request(request(310, send_fields(), b"x"))

    await machine.use(try_one_more)
    assert machine.process is not None
    with trio.fail_after(DEADLINE_S):
        assert await trio.to_thread.run_sync(machine.process.wait, DEADLINE_S) != 0
    assert [one.kind for one in machine.faults.flush_trace()].count("failed") == 1
    machine.faults.set_rules([])
    machine.start()
    assert (await bodies(machine))[:10] == TEN
