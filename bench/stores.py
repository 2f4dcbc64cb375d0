"""Store directories for the measures of starts, written by the node's own store.

python -m bench.stores late ROOT QUEUES: queues whose first message has a late offset
python -m bench.stores large ROOT BYTES END: a log of large messages

END is its last event: `clean`, `killed` (SIGKILL, the durable mark at the end of the log) or
`unmarked` (SIGKILL, the mark still at its beginning).
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import trio

from rocketbed.inspect import open_directory
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.world.real import real_world

MIB = 1 << 20
LATE_OFFSET = 299_990
"""Ten units before the end of a queue's first file, in RocketMQ's size."""
QUEUES_OF_A_TOPIC = 10
LARGE_BODY = 1 * MIB - 512
AT_ONCE = 8
"""Messages between two waits for dispatch: a late queue's first one has 6 MB of units."""
HOST = b"\x7f\0\0\1\0\0\x13\x88"
FOREVER_MS = 1 << 40


async def late(root: str, queues: int) -> None:
    """Write one message for each queue, the first of which has the offset `LATE_OFFSET`.

    Like a slave of a master whose log had expired before the slave came.
    """
    store = await MessageStore.open(real_world("bench"), StoreConfig(root=root))
    places = [divmod(number, QUEUES_OF_A_TOPIC) for number in range(queues)]
    offsets = {(f"late-{topic}", queue_id): LATE_OFFSET for topic, queue_id in places}
    store.log.tail.next_queue_offsets.update(offsets)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for number, (topic, queue_id) in enumerate(offsets):
            _put(store, topic, queue_id, number, b"late")
            if number % AT_ONCE == 0:
                await store.dispatched.wait_above(store.max_offset - 1)
        await store.close()


async def large(root: str, size: int, end: str) -> None:
    """Write a log of at least `size` bytes in messages of almost 1 MiB."""
    config = StoreConfig(root=root)
    if end == "unmarked":
        config = replace(config, mark_interval_ms=FOREVER_MS)
    store = await MessageStore.open(real_world("bench"), config)
    body = os.urandom(LARGE_BODY)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        number = 0
        while store.max_offset < size:
            _put(store, "large", number % 8, number, body)
            number += 1
            if number % AT_ONCE == 0:
                await store.dispatched.wait_above(store.max_offset - 1)
        if end == "killed":
            await _wait_marked(root, store.max_offset)
        if end != "clean":
            os.kill(os.getpid(), signal.SIGKILL)
        await store.close()


async def _wait_marked(root: str, end: int) -> None:
    """Wait until the durable mark is at the end of the log, so that nothing has to be scanned."""
    for _ in range(600):
        marks = open_directory(root).marks
        if marks is not None and marks.durable_offset >= end:
            return
        await trio.sleep(0.1)
    raise RuntimeError(f"the durable mark of {root} does not rise to {end}")


def _put(store: MessageStore, topic: str, queue_id: int, number: int, body: bytes) -> None:
    unique = f"7F000001{number:024X}"
    run = store.begin()
    run.add(
        topic,
        queue_id,
        body,
        f"UNIQ_KEY\x01{unique}\x02".encode(),
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=HOST,
        keys=(unique,),
    )
    store.commit(run)


def build(root: Path, *arguments: str) -> None:
    """Write a directory in a separate process. Raises `RuntimeError`."""
    command = [sys.executable, "-P", "-m", "bench.stores", arguments[0], str(root), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{command} failed:\n{done.stderr.decode()[-2000:]}")


def evict(root: Path) -> None:
    """Evict all files of a directory from the page cache, as after a reboot."""
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class Snapshot:
    """Copies of the small files of a store, which record its last stop; they can be put back.

    So a directory is started several times from the same evidence. Log, queues and index stay: a
    start does not change their contents below the durable mark.
    """

    def __init__(self, root: Path, place: Path) -> None:
        self._root = root
        self._place = Path(tempfile.mkdtemp(dir=place))
        for path in root.iterdir():
            if path.is_file():
                shutil.copy2(path, self._place)

    def put_back(self) -> Self:
        """Restore the files, and remove newer ones."""
        for path in self._root.iterdir():
            if path.is_file():
                path.unlink()
        for path in self._place.iterdir():
            shutil.copy2(path, self._root)
        return self


if __name__ == "__main__":
    if sys.argv[1] == "late":
        trio.run(partial(late, sys.argv[2], int(sys.argv[3])))
    else:
        trio.run(partial(large, sys.argv[2], int(sys.argv[3]), sys.argv[4]))
