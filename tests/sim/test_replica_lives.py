"""Reports of a replica that may have lost bytes, until its register has received one."""

from typing import Any

import crcmod.predefined
import pytest

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.replication.entry import Policy
from rocketbed.replication.identity import ReplicaFile, ReplicaFileDamaged
from rocketbed.world.api import World

ROOT = "/store"


async def life(world: World, *, trusts_cache: bool, tells: bool, stops: bool) -> bool:
    """True if it holds everything that a former life acknowledged."""
    world.disk.makedirs(ROOT)
    file = ReplicaFile(world, ROOT)
    is_lossless = await file.begin(
        group="g", number=1, policy=Policy.MEMORY, trusts_cache=trusts_cache
    )
    if tells:
        await file.clear_loss()
    if stops:
        await file.stopped()
    return is_lossless


def lives(*rows: tuple[int, bool, bool], trusts_cache: bool = True) -> list[bool]:
    """Run one life for each row: number of the boot, whether the register hears of it, whether it
    stops.
    """
    image: DiskImage | None = None
    results = []
    for boots, tells, stops in rows:

        async def main(world: World, tells: bool = tells, stops: bool = stops) -> bool:
            return await life(world, trusts_cache=trusts_cache, tells=tells, stops=stops)

        run = run_solo(main, image=image, boots=boots)
        image = run.image
        results.append(run.value)
    return results


@pytest.mark.parametrize("stops", [True, False])
def test_loss_is_reported_in_later_incarnations(stops: bool) -> None:
    """The life that began without what the power took ended in order, unheard."""
    results = lives((1, True, False), (2, False, stops), (2, False, stops), (2, True, stops))
    assert results == [True, False, False, False]
    assert lives((1, True, False), (2, True, stops), (2, True, stops)) == [True, False, True]


@pytest.mark.parametrize("stops", [True, False])
def test_loss_is_reported_when_a_kill_loses_memory(stops: bool) -> None:
    results = lives((1, True, False), (1, False, stops), (1, True, True), (1, True, True),
                  trusts_cache=False)  # fmt: skip
    assert results == [True, False, False, True]


PATH = f"{ROOT}/replica.rb"
SIZE_MAX = 1 << 20
"""Bytes of a file that a replica reads."""


async def begin(world: World, group: str = "g", number: int = 1) -> ReplicaFile:
    file = ReplicaFile(world, ROOT)
    await file.begin(group=group, number=number, policy=Policy.MEMORY, trusts_cache=True)
    return file


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda data: data[:40] + bytes((data[40] ^ 1,)) + data[41:], "cannot be read"),
        (lambda data: data[:40], "cannot be read"),
        (lambda data: b"", "it has 0 bytes"),
        (lambda data: data + b"more\n", "cannot be read"),
        (lambda data: bytes(SIZE_MAX + 1), f"it has {SIZE_MAX + 1} bytes"),
        (lambda data: data.replace(b"-replica 1", b"-epochs 1"), "does not match its CRC"),
        (lambda data: data.replace(b" 1\n", b" 2\n", 1), "it is a 'rocketbed-"),
    ],
    ids=["bit", "half", "empty", "longer", "too long", "another kind", "another version"],
)
def test_a_damaged_identity_is_refused(edit: Any, reason: str) -> None:
    async def main(world: World) -> None:
        disk: Any = world.disk
        disk.makedirs(ROOT)
        await begin(world)
        damaged = edit(disk.contents(PATH))
        disk.replace_contents(PATH, damaged)
        with pytest.raises(ReplicaFileDamaged, match=reason):
            await begin(world)
        assert disk.contents(PATH) == damaged

    run_solo(main).value  # noqa: B018


def test_a_folder_in_place_of_an_identity_is_refused() -> None:
    async def main(world: World) -> None:
        world.disk.makedirs(PATH)
        with pytest.raises(ReplicaFileDamaged, match="it is no file"):
            await begin(world)

    run_solo(main).value  # noqa: B018


def test_a_directory_belongs_to_one_replica_only() -> None:
    async def main(world: World) -> None:
        world.disk.makedirs(ROOT)
        await begin(world)
        for changes in ({"number": 2}, {"group": "another"}):
            with pytest.raises(ReplicaFileDamaged, match="belongs to one replica only"):
                await begin(world, **changes)

    run_solo(main).value  # noqa: B018


def test_the_longest_identity_is_read() -> None:
    async def main(world: World) -> None:
        disk: Any = world.disk
        disk.makedirs(ROOT)
        await begin(world)
        kind, text, *_ = disk.contents(PATH).split(b"\n")
        text += b" " * (SIZE_MAX - len(kind) - len(text) - 11)
        crc = crcmod.predefined.mkCrcFun("crc-32c")(text)
        disk.replace_contents(PATH, b"%b\n%b\n%08x\n" % (kind, text, crc))
        assert len(disk.contents(PATH)) == SIZE_MAX
        assert (await begin(world)).state.incarnation == 2

    run_solo(main).value  # noqa: B018
