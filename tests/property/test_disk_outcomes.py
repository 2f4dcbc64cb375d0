"""The oracle of the disk model: what cuts draw is allowed, and not all is allowed."""

from copy import deepcopy
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.inode import POWER_CUT_MODES, Inode
from tests.support.disk_calls import SEQUENCES, Call, perform
from tests.support.sim.disk_outcomes import (
    content_refusal,
    possible_lengths,
    possible_names,
    refusal,
)


async def play(disk: SimDisk, calls: list[Call]) -> None:
    for step, call in enumerate(calls):
        try:
            await perform(disk, "/", call, bytes([1 + step]))
        except OSError:
            continue


@given(sequences=SEQUENCES, seed=st.integers(0, 99), mode=st.sampled_from(POWER_CUT_MODES))
def test_every_cut_leaves_what_the_oracle_allows(
    sequences: list[list[Call]], seed: int, mode: str
) -> None:
    disk = SimDisk(random=Random(seed))
    for calls in sequences:
        trio.run(play, disk, calls)
    before = disk.image().namespace()
    disk.power_cut(mode)
    files = {path: disk.contents(path) for path in disk.paths()}
    directories = {path for path in disk.image().namespace().visible.children if path != "/"} - {
        "."
    }
    assert refusal(before, files, directories) == ""


async def prepared() -> SimDisk:
    disk = SimDisk()
    file = disk.open("/a", create=True)
    file.write_at(0, b"s" * 1000)
    await file.sync()
    await disk.sync_dir("/")
    file.write_at(500, b"d" * 1000)
    disk.open("/b", create=True)
    return disk


async def test_synced_data_may_not_be_lost() -> None:
    names = (await prepared()).image().namespace()
    assert refusal(names, {"/a": b"s" * 1000}, set()) == ""
    assert refusal(names, {"/a": b"s" * 500 + b"d" * 1000, "/b": b""}, set()) == ""
    torn = b"s" * 500 + b"d" * 12 + b"s" * 488
    assert refusal(names, {"/a": torn}, set()) == ""
    assert "length 999" in refusal(names, {"/a": b"s" * 999}, set())
    assert "bytes from 0 on are 00*512" in refusal(names, {"/a": bytes(1000)}, set())
    assert "no order of changes" in refusal(names, {}, set())
    assert "no order of changes" in refusal(names, {"/a": b"s" * 1000}, {"/d"})
    assert len(list(possible_names(names))) == 2


def cut(inode: Inode) -> set[int]:
    """Every length that cuts of this file leave."""
    lengths = set()
    for seed in range(300):
        twin = deepcopy(inode)
        twin.lose_power("random", Random(seed))
        lengths.add(twin.length)
    return lengths


def test_length_between_two_writes_may_come_back() -> None:
    inode = Inode()
    inode.truncate(1)
    inode.write(0, b"x" * 300)
    assert possible_lengths(inode) == [(300, 300), (1, 300), (0, 0)]
    assert cut(inode) == {0, 1, 300}


def test_zeros_between_two_writes_may_come_back() -> None:
    inode = Inode()
    inode.write(0, b"old" * 200)
    inode.complete_sync(inode.begin_sync())
    inode.truncate(0)
    inode.allocate(600)
    inode.write(0, b"new" * 200)
    assert content_refusal(inode, bytes(600)) == ""
    assert content_refusal(inode, b"old" * 200) == ""
    assert content_refusal(inode, b"new" * 200) == ""
    assert content_refusal(inode, b"two" * 200) != ""
    contents = set()
    for seed in range(300):
        twin = deepcopy(inode)
        twin.lose_power("random", Random(seed))
        contents.add(twin.read(0, 3))
    assert {b"old", b"new", b"\0\0\0", b""} == contents


def test_reservation_below_the_end_may_remain_alone() -> None:
    inode = Inode()
    inode.write(0, b"x" * 300)
    inode.allocate(1)
    assert cut(inode) == {0, 1, 300}
    inode.complete_sync(inode.begin_sync())
    inode.allocate(1)
    assert cut(inode) == {300}


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_sync_covers_the_generations_before_it(in_flight: bool) -> None:
    inode = Inode()
    inode.write(0, b"a" * 600)
    inode.truncate(100)
    number = inode.begin_sync()
    inode.write(0, b"b" * 50)
    inode.truncate(40)
    if not in_flight:
        inode.complete_sync(number)
    lengths = cut(inode)
    assert 40 in lengths
    assert 100 in lengths
    assert (0 in lengths) is in_flight
