"""A replica's own file over its incarnations, and the form of such small files."""

import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.replication.entry import Policy
from rocketbed.replication.errors import NoRoom
from rocketbed.replication.identity import ReplicaFile, ReplicaFileDamaged
from rocketbed.replication.kept_file import (
    SIZE_MAX,
    KeptFileDamaged,
    KeptFileUnwritable,
    read_kept,
    write_kept,
)
from rocketbed.replication.restart import lost_nothing
from rocketbed.world.api import World
from tests.model.durable import ensure_durable

ROOT = "/replica"
PATH = f"{ROOT}/thing"
KIND = "rocketbed-thing 1"
LIVES = 60


def on_disk(main: Callable[[World], Awaitable[None]]) -> None:
    """Run it on a simulated disk that has the directory."""

    async def with_directory(world: World) -> None:
        world.disk.makedirs(ROOT)
        await main(world)

    assert run_solo(with_directory).outcome == "ended"


@pytest.mark.parametrize("policy", list(Policy))
def test_memory_alone_loses_what_a_power_cut_takes(policy: Policy) -> None:
    for stopped, same_kernel in ((False, False), (False, True), (True, False), (True, True)):
        expected = policy is Policy.FSYNC or stopped or same_kernel
        assert lost_nothing(policy, stopped=stopped, same_kernel=same_kernel) == expected
    assert policy.held(written=7, flushed=5) == (5 if policy is Policy.FSYNC else 7)


@pytest.mark.parametrize("seed", range(3))
def test_an_incarnation_reports_losses_until_they_are_registered(seed: int) -> None:
    random = Random(seed)

    async def lives(world: World) -> None:
        boot = number = 0
        reported, stopped, kernel = True, True, -1
        for _ in range(LIVES):
            boot += random.random() < 0.3
            process: Any = SimpleNamespace(boot_id=f"boot{boot}")
            file = ReplicaFile(replace(world, process=process), ROOT)
            policy, trusts = random.choice(tuple(Policy)), random.random() < 0.7
            lost = random.random() < 0.2
            values: dict[str, Any] = {"policy": policy, "trusts_cache": trusts, "lost": lost}
            is_whole = await file.begin(group="g", number=1, **values)
            number += 1
            for group, replica in (("h", 1), ("g", 2)):
                with pytest.raises(ReplicaFileDamaged):
                    await file.begin(group=group, number=replica, **values)
            same = trusts and kernel == boot
            expected = (stopped or same or policy is Policy.FSYNC) and not lost and reported
            assert is_whole == expected
            assert file.state.incarnation == number
            kernel = boot if stopped or same else -1
            reported, stopped = reported and not lost, False
            if random.random() < 0.3:
                number += random.randrange(1, 4)
                await file.raise_life(number)
            if random.random() < 0.5:
                await file.clear_loss()
                reported, kernel = True, boot
            if random.random() < 0.5:
                await file.stopped()
                stopped = kernel == boot
            state = file.state
            assert (state.boot_id == f"boot{boot}", state.lost) == (kernel == boot, not reported)
            assert state.stopped == stopped

    on_disk(lives)


def test_a_node_without_failover_marks_the_directory() -> None:
    async def leave(world: World) -> None:
        file, disk = ReplicaFile(world, ROOT), world.disk
        await file.leave()
        assert not disk.exists(file.path)
        for _ in range(2):
            await file.begin(group="g", number=1, policy=Policy.FSYNC, trusts_cache=True)
            assert not file.was_alone()
            await file.leave()
            assert file.was_alone()
            events = getattr(disk, "events", None)
            await file.leave()
            assert getattr(disk, "events", None) == events

    on_disk(leave)


def test_reads_only_an_undamaged_file_of_its_kind() -> None:
    async def damage(world: World) -> None:
        disk: Any = world.disk
        assert read_kept(world, PATH, KIND) is None
        value = {"n": 7, "text": "xx"}
        await write_kept(world, ROOT, "thing", KIND, value)
        ensure_durable(world, "a small file")
        assert read_kept(world, PATH, KIND) == value
        good = disk.contents(PATH)
        damaged = (good[:-1], good[1:], good + b"\n", good.replace(b'"n"', b'"m"'), bytes(9), b"r")
        for data in (b"", *damaged):
            disk.replace_contents(PATH, data)
            with pytest.raises(KeptFileDamaged, match="CRC" if data else "it has 0 bytes"):
                read_kept(world, PATH, KIND)
        disk.replace_contents(PATH, good)
        for kind, reason in (("other 1", "CRC"), (KIND[:-1] + "2", f"it is a {KIND!r}")):
            with pytest.raises(KeptFileDamaged, match=reason):
                read_kept(world, PATH, kind)
        with pytest.raises(KeptFileDamaged):
            read_kept(world, ROOT, KIND)

    on_disk(damage)


def test_refuses_a_file_above_the_limit() -> None:
    async def fill(world: World) -> None:
        disk: Any = world.disk
        await write_kept(world, ROOT, "thing", KIND, {"text": ""})
        room = SIZE_MAX - len(disk.contents(PATH))
        await write_kept(world, ROOT, "thing", KIND, {"text": "x" * room})
        read_kept(world, PATH, KIND)
        await write_kept(world, ROOT, "thing", KIND, {"text": "x" * (room + 1)})
        with pytest.raises(KeptFileDamaged):
            read_kept(world, PATH, KIND)

    on_disk(fill)


def test_a_failing_disk_keeps_the_old_file() -> None:
    async def fail(world: World) -> None:
        disk: Any = world.disk
        await write_kept(world, ROOT, "thing", KIND, {"n": 1})
        disk.quota = disk.allocated()
        with pytest.raises(NoRoom):
            await write_kept(world, ROOT, "thing", KIND, {"n": 2})
        disk.quota, sync_dir = None, disk.sync_dir

        async def no_room(path: str) -> None:
            raise OSError(errno.ENOSPC, "no room", path)

        disk.sync_dir = no_room
        with pytest.raises(KeptFileUnwritable):
            await write_kept(world, ROOT, "another", KIND, {})
        disk.sync_dir, disk.read_only = sync_dir, True
        with pytest.raises(KeptFileUnwritable):
            await write_kept(world, ROOT, "thing", KIND, {"n": 2})
        disk.read_only = False
        disk.replace_contents(f"{PATH}.new", bytes(999))  # left by a crash
        assert read_kept(world, PATH, KIND) == {"n": 1}
        await write_kept(world, ROOT, "thing", KIND, {"n": 2})
        assert read_kept(world, PATH, KIND) == {"n": 2}

    on_disk(fail)
