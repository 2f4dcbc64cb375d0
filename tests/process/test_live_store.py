"""Reading a store directory while another process writes to it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.inspect import (
    Filter,
    Report,
    Severity,
    check_store,
    messages,
    open_directory,
    rebuild,
)
from rocketbed.inspect.listing import describe, table

pytestmark = pytest.mark.process

WRITER = """
import struct, sys, trio
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.world.real import real_world

HOST = bytes([127, 0, 0, 1]) + struct.pack(">i", 5000)

async def main():
    config = StoreConfig(root=sys.argv[1], segment_size=1 << 20, queue_segment_size=4000,
                         index_slots=500, index_entries=2000, mark_interval_ms=50)
    store = await MessageStore.open(real_world("writer"), config)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        number = 0
        while True:
            run = store.begin()
            for _ in range(20):
                unique, tag = f"id{number:030d}", f"tag{number % 5}"
                text = f"UNIQ_KEY\\x01{unique}\\x02TAGS\\x01{tag}\\x02"
                run.add("T", number % 4, b"x" * (number % 900), text.encode(), flag=0, sys_flag=0,
                        born_ms=1, born_host=HOST, tag=tag, keys=(unique,))
                number += 1
            store.commit(run)
            if number == 2000:
                print("ready", flush=True)
            await trio.sleep(0.001)

trio.run(main)
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == "ready\n"
            yield root
        finally:
            writer.kill()


def examine(root: Path) -> Report:
    opened = open_directory(root)
    try:
        return check_store(opened)
    finally:
        opened.close()


def test_a_live_store_is_read_as_live(live: Path, tmp_path: Path) -> None:
    for _ in range(5):
        report = examine(live)
        assert report.live
        assert report.worst <= Severity.TAIL, report.findings
        assert report.records >= 2000
    opened = open_directory(live)
    assert any("the store is live" in line for line in table(describe(opened)))
    scanned = list(messages(opened, Filter(topic="T", queue_id=1, scan=True)))
    assert [m.queue_offset for m in scanned] == list(range(len(scanned)))
    queued = list(messages(opened, Filter(topic="T", queue_id=1)))
    assert [m.queue_offset for m in queued] == list(range(len(queued)))
    assert len(list(messages(opened, Filter(topic="T", key=f"id{1234:030d}")))) == 1
    rebuild(opened, str(tmp_path / "out"))
    opened.close()


def test_check_of_a_killed_store_finds_a_tail_at_most(live: Path) -> None:
    opened = open_directory(live)
    writer = opened.lock_holder()
    opened.close()
    assert writer is not None
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, os.WNOHANG)
    report = examine(live)
    assert report.worst <= Severity.TAIL, report.findings
