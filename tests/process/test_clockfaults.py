"""A node's wall clock jumps and its timers do not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.process.disk.faults import DiskFaults, join_environments
from rocketbed.chaos.backends.process.machine.clock import ClockFaults, find_library
from rocketbed.chaos.plan.generator import RETENTION
from rocketbed.chaos.plan.plan import Background, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.search.runner import Options, run_plan
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.cleaners import faketime_files
from rocketbed.host.janitor.record import Ledger
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import NotConnected
from rocketbed.wire.command import request
from rocketbed.wire.message import decode_messages
from rocketbed.world.real import real_world
from tests.support.broker import pull_fields, send_fields
from tests.support.ports import free_port

pytestmark = pytest.mark.slow  # needs libfaketime

HOUR_S = 3600
CLOCKS = """
import select, sys, time
while sys.stdin.readline():
    before = time.monotonic()
    select.select([], [], [], 0.05)
    print(time.time(), time.monotonic() - before, time.clock_gettime(time.CLOCK_BOOTTIME),
          flush=True)
"""


HOPS = """
import statistics, time, trio
async def main():
    times = []
    for _ in range(101):
        began = time.monotonic()
        await trio.to_thread.run_sync(int)
        times.append(time.monotonic() - began)
    print(statistics.median(times))
trio.run(main)
"""


EXPIRY = Plan(
    name="expiry",
    seed=5,
    shape=Shape(brokers=1, nameservers=1, segment=1 << 14, settings=RETENTION),
    producers=Producers(count=1, rate=40.0, queues=1, body=(400, 1500)),
    background=Background(wall_rate=600),
    steps=(parse_step("at 4s kill b1 for 500ms"),),
    faults_s=10.0,
    recovery_s=10.0,
)
"""An hour of the wall clock passes in 6 s."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        yield run


@pytest.mark.ci
def test_only_the_wall_clock_moves(run: Ledger) -> None:
    clock = ClockFaults(run.directory, run=run)
    with subprocess.Popen(
        [sys.executable, "-c", CLOCKS],
        env=join_environments(os.environ, clock.environment()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        clock.attach(child.pid)
        assert child.stdin is not None
        assert child.stdout is not None
        for jump, ahead in ((0, 0), (2 * HOUR_S, 2 * HOUR_S), (-3 * HOUR_S, -HOUR_S)):
            assert clock.jump(jump) == ahead
            began, began_boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
            child.stdin.write("\n")
            child.stdin.flush()
            wall, waited, boot = map(float, child.stdout.readline().split())
            ended, ended_boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
            # The clocks tick from one start: what is between two of ours is exact but for rounding.
            assert began - 1 <= wall - ahead <= ended + 1
            assert 0.05 <= waited <= ended - began + 1
            assert began_boot - 1 <= boot <= ended_boot + 1
        files = faketime_files(child.pid)
        assert any(path.exists() for path in files)
        child.kill()
        child.wait()
        assert any(path.exists() for path in files)
        clock.close()
        assert not any(path.exists() for path in files)


def test_threads_are_as_fast_as_without_it(run: Ledger) -> None:
    clock = ClockFaults(run.directory, run=run)
    clock.jump(-2 * HOUR_S)
    finished = subprocess.run(
        [sys.executable, "-c", HOPS],
        env=join_environments(os.environ, clock.environment()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(finished.stdout) < 0.001


def test_the_janitor_knows_what_the_library_leaves(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path / "runs", guard=False) as run:
        clock = ClockFaults(run.directory, run=run)
        child = subprocess.Popen(
            [sys.executable, "-c", CLOCKS],
            env=join_environments(os.environ, clock.environment(), run.environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout is not None
        assert child.stdout.readline()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert not any(path.exists() for path in faketime_files(child.pid))


def start_node(root: Path, port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    settings = [
        f"storePathRootDir={root}",
        f"listenPort={port}",
        "bindAddress=127.0.0.1",
        "mappedFileSizeCommitLog=4194304",
        "flushDiskType=SYNC_FLUSH",
    ]
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-P", "-m", "rocketbed", "node", *sets]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


async def test_clock_jump_moves_messages_and_not_timers(run: Ledger) -> None:
    clock = ClockFaults(run.directory, run=run)
    (run.directory / "b1").mkdir()
    faults = DiskFaults(run.directory / "faults", root=run.directory / "b1")
    port = free_port()
    environment = join_environments(os.environ, faults.environment(), clock.environment())
    node = start_node(faults.root, port, environment)
    clock.attach(node.pid)
    began = time.time()
    try:
        with trio.fail_after(120):
            stored = await send_over_jumps(port, clock, [0, HOUR_S, -2 * HOUR_S])
    finally:
        node.kill()
        node.communicate()
        clock.close()
    ended = time.time()
    for at, ahead in zip(stored, (0, HOUR_S), strict=False):
        assert began - 1 <= at / 1000 - ahead <= ended + 1
    assert stored[2] == stored[1], (
        "store times do not go back with the clock: binary search by time"
    )
    log = [one for one in faults.flush_trace() if "/commitlog/" in one.path]
    assert len(log) >= 3
    assert log[-1].time_ns - log[0].time_ns < (ended - began + 1) * 1e9


async def send_over_jumps(port: int, clock: ClockFaults, jumps: list[int]) -> list[int]:
    """Send a message after each jump, then hold a pull for 0.3 s; what time each was stored.

    The hold ends long before an hour is over: a jump did not move its timer.
    """
    stored = []

    async def use(connection: Connection) -> None:
        for number, jump in enumerate(jumps):
            clock.jump(jump)
            assert (await connection.request(request(310, send_fields(), b"x"))).code == 0
            held = pull_fields(offset=number, flags=4 | 2, hold_ms=20_000)
            pulled = await connection.request(request(11, held), timeout_s=30)
            stored.append(decode_messages(pulled.body)[0].store_timestamp)
            began = trio.current_time()
            empty = pull_fields(offset=number + 1, flags=4 | 2, hold_ms=300)
            assert (await connection.request(request(11, empty), timeout_s=30)).code == 19
            assert 0.25 < trio.current_time() - began < 30

    world = real_world("test")
    while not stored:
        try:
            async with open_connection(world, ("127.0.0.1", port)) as connection:
                await use(connection)
        except* NotConnected:
            await trio.sleep(0.01)
    return stored


def test_missing_clock_library_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "rocketbed.chaos.backends.process.machine.clock.LIBRARY_GLOBS", ("/nowhere/*.so",)
    )
    with pytest.raises(HostError, match="apt-get install faketime"):
        find_library()


def test_old_messages_expire_on_real_processes() -> None:
    outcome = run_plan(EXPIRY, Options(backend="process", net="plain"))
    assert outcome.judgement is not None, outcome.error
    assert outcome.finding_ids == []
    assert outcome.judgement.result("retention").examined > 5
