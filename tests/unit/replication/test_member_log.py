"""A log that a replica finds at its start, and the bytes that it compares with its leader's."""

import errno
import zlib
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.replication.epoch_file import EpochFile
from rocketbed.replication.epochs import Epoch
from rocketbed.replication.errors import LinkRefused, RecordRefused
from rocketbed.replication.follower import Follower
from rocketbed.replication.member import Member
from rocketbed.world.api import World


class Log:
    """A log by its bounds and epochs; notes what is asked of it."""

    def __init__(self, low: int, written: int, whole: int, epochs: list[Epoch]) -> None:
        self.min_offset = low
        self.written = SimpleNamespace(value=written)
        self.scanned_from, self.cuts = list[int](), list[int]()
        self._whole, self._epochs = whole, epochs

    def whole_end(self) -> int:
        return self._whole

    async def cut_to(self, offset: int) -> None:
        self.cuts.append(offset)

    async def epochs(self, since: int) -> list[tuple[int, int]]:
        self.scanned_from.append(since)
        return [(epoch.number, epoch.start) for epoch in self._epochs if epoch.start >= since]


@pytest.mark.parametrize("seed", range(30))
def test_a_start_completes_the_epochs_of_its_log(seed: int) -> None:
    random = Random(seed)
    low = random.choice((0, 0, 5))
    starts = sorted(random.sample(range(low, low + 6), random.randrange(4)))
    epochs = [Epoch(number + 1, start) for number, start in enumerate(starts)]
    end = max(low, *(start + 1 for start in (*starts, low - 1))) + random.randrange(3)
    recorded = epochs[: random.randrange(len(epochs) + 1)]
    beyond = [Epoch(9, end + random.randrange(3))] * (random.random() < 0.3)
    confirm = end + random.randrange(-1, 2)
    cut = random.choice((None, None, end, end + 1))
    log = Log(low, end + (cut is not None), end, epochs)

    async def recover(world: World) -> EpochFile:
        world.disk.makedirs("/member")
        file = EpochFile(world, "/member")
        await file.save(history=(*recorded, *beyond), confirm=confirm, cut_to=cut)
        member: Any = SimpleNamespace(_log=log, _file=file)
        await Member._recover(member)
        return file

    state = run_solo(recover).value.state
    expected = tuple(epochs)
    if (epochs and not low and epochs[0].start) or (not epochs and end > low):
        expected = (Epoch(0, 0), *expected)
    assert log.scanned_from == [recorded[-1].start + 1 if recorded else low]
    assert (state.history, state.confirm, state.cut_to) == (expected, min(confirm, end), None)
    assert log.cuts == ([end] if cut == end else [])


@pytest.mark.parametrize(
    ("start", "cut"), list(product((2, 3, 8, 15), (3, 4, 8, 9, 16, 17)))
)  # the log begins at 3 and has files of 8 bytes
def test_compares_bytes_of_a_single_file(start: int, cut: int) -> None:
    data = bytes(range(32))
    log = SimpleNamespace(min_offset=3, segment_size=8, read=lambda at, size: data[at : at + size])
    follower: Any = SimpleNamespace(_log=log, leader=1)
    crc = zlib.crc32(data[start:cut])
    Follower._compare(follower, welcome(start, cut, crc))
    if 2 < start < cut and (cut + 7) // 8 - start // 8 == 1:
        with pytest.raises(RecordRefused):
            Follower._compare(follower, welcome(start, cut, crc + 1))
    else:
        Follower._compare(follower, welcome(start, cut, crc + 1))


def welcome(start: int, cut: int, crc: int) -> Any:
    return SimpleNamespace(compared=start, cut=cut, crc=crc)


def test_a_failing_disk_ends_only_the_connection() -> None:
    def read(*_: int) -> bytes:
        raise OSError(errno.EIO, "failed")

    log = SimpleNamespace(min_offset=3, segment_size=8, read=read)
    follower: Any = SimpleNamespace(_log=log, leader=1)
    with pytest.raises(LinkRefused):
        Follower._compare(follower, welcome(3, 8, 0))
