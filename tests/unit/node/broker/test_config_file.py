"""The JSON tables under config/: whole after any crash, told when they are not (trap T11)."""

import functools
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.config_file import LARGE, ConfigFile, ConfigFileError, SavedTable
from rocketbed.wire.encoding.json_dialect import BodyError
from rocketbed.world.api import World
from tests.model.durable import ensure_durable

DIRECTORY = "/store/config"
NAME = "topics.json"


async def write(world: World, *versions: int) -> None:
    file = ConfigFile(world, DIRECTORY, NAME)
    for version in versions:
        world.mark(f"before {version}")
        await file.write({"version": version, "padding": "x" * 3000})


def version_of(value: dict[str, Any]) -> Any:
    if not isinstance(value.get("version"), int):
        raise BodyError("a table without a version")
    return value["version"]


async def load(world: World) -> tuple[Any, bool]:
    file = ConfigFile(world, DIRECTORY, NAME)
    return file.load(version_of), file.is_clean


def loaded(image: DiskImage) -> tuple[Any, bool]:
    result = run_solo(load, image=image, boots=2).value
    assert isinstance(result, tuple)
    return result


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("mode", ["random", "strict", "reorder"])
def test_T11_crash_at_any_disk_event_leaves_a_valid_table(kind: str, mode: str) -> None:
    first = run_solo(write, 1, 2).image
    events = run_solo(write, 3, 4, image=first).events
    versions = set()
    for event in range(1, events + 1):
        crashed = run_solo(write, 3, 4, image=first, crash_at=event, kind=kind, mode=mode)
        version, _ = loaded(crashed.image)
        assert version in (2, 3, 4)
        versions.add(version)
    assert {2, 3} <= versions


async def write_and_read(world: World, value: dict[str, Any]) -> tuple[bytes, Any]:
    file = ConfigFile(world, DIRECTORY, NAME)
    await file.write(value)
    reopened = ConfigFile(world, DIRECTORY, NAME)
    opened = world.disk.open(f"{DIRECTORY}/{NAME}")
    try:
        text = opened.read_at(0, opened.size())
    finally:
        opened.close()
    return bytes(text), reopened.load(lambda read: read)


@pytest.mark.parametrize("number", [7, 1 << 70])
def test_a_table_is_written_in_RocketMQs_form(number: int) -> None:
    value = {"table": {'a "b": c': {0: number}, "é": []}, "empty": {}}
    text, read = run_solo(write_and_read, value).value
    keys = f'"a \\"b\\": c":{{\n\t\t\t"0":{number}\n\t\t}},\n\t\t"é":[]'
    assert text.decode() == f'{{\n\t"table":{{\n\t\t{keys}\n\t}},\n\t"empty":{{}}\n}}'
    assert read["table"]['a "b": c'] == {"0": number}


def test_a_large_table_is_legal_JSON() -> None:
    value = {"table": {f"name {i}": {0: i} for i in range(20_000)}}
    text, read = run_solo(write_and_read, value).value
    assert len(text) > LARGE
    assert read == {"table": {name: {"0": row[0]} for name, row in value["table"].items()}}


BAD = [
    b"",
    b"{",
    b"\0" * 4096,
    b"[1]",
    b'{"version":9}tail',
    b"\xff",
    b'{"version":"x"}',
]


@pytest.mark.parametrize("bad", BAD)
def test_an_unreadable_table_is_read_from_its_backup(bad: bytes) -> None:
    image = run_solo(write, 1, 2).image

    async def damage(world: World) -> None:
        file = world.disk.open(f"{DIRECTORY}/{NAME}")
        file.truncate(0)
        file.write_at(0, bad)
        await file.sync()

    damaged = run_solo(damage, image=image).image
    assert loaded(damaged) == (1, False)

    async def load_and_write(world: World) -> tuple[Any, bytes | None]:
        file = ConfigFile(world, DIRECTORY, NAME)
        file.load(version_of)
        await file.write({"version": 3})
        backup = ConfigFile(world, DIRECTORY, f"{NAME}.bak").load(version_of)
        await file.write({"version": 4})
        damaged_file = ConfigFile(world, DIRECTORY, f"{NAME}.damaged")
        return backup, damaged_file.read_bytes() if world.disk.exists(damaged_file.path) else None

    is_empty = not bad.strip(b"\0")
    assert run_solo(load_and_write, image=damaged).value == (1, None if is_empty else bad)


def test_missing_table_missing_backup_means_defaults() -> None:
    assert loaded(DiskImage()) == (None, False)


def test_unreadable_backup_error_says_what_to_do() -> None:
    image = run_solo(write, 1, 2).image

    async def damage(world: World) -> None:
        for path in (f"{DIRECTORY}/{NAME}", f"{DIRECTORY}/{NAME}.bak"):
            file = world.disk.open(path)
            file.truncate(0)
            file.write_at(0, b"{torn")
            await file.sync()
        with pytest.raises(ConfigFileError, match="remove both to start with defaults"):
            await load(world)

    assert run_solo(damage, image=image).outcome == "ended"


def test_clean_table_is_distinguished_from_its_backup() -> None:
    assert loaded(run_solo(write, 1, 2).image) == (2, True)


def test_table_without_a_descriptor_does_not_use_its_backup() -> None:
    def crowded(disk: SimDisk) -> None:
        disk.descriptors = 0

    image = run_solo(write, 1, 2).image
    with pytest.raises(ConfigFileError, match=r"topics\.json cannot be read: .*ulimit"):
        run_solo(load, image=image, prepare=crowded)


def test_a_table_of_rocketmq_is_read() -> None:
    async def main(world: World) -> object:
        world.disk.makedirs(DIRECTORY)
        file = world.disk.open(f"{DIRECTORY}/{NAME}", create=True)
        file.write_at(0, b'{\n\t"offsetTable":{\n\t\t"T@g":{0:7,1:6\n\t\t}\n\t}\n}')
        return ConfigFile(world, DIRECTORY, NAME).load(lambda value: value)

    assert run_solo(main).value == {"offsetTable": {"T@g": {"0": 7, "1": 6}}}


@pytest.mark.parametrize("number", [7, 1 << 70], ids=["usual", "of more than 64 bits"])
def test_tables_with_numbers_as_keys_are_written(number: int) -> None:
    async def main(world: World) -> object:
        file = ConfigFile(world, DIRECTORY, NAME)
        await file.write({"offsetTable": {"T@\u00e4": {0: number, 1: 6}}})
        return file.load(lambda value: value)["offsetTable"]["T@\u00e4"].items()  # type: ignore[index]

    assert list(run_solo(main).value) == [("0", pytest.approx(number)), ("1", 6)]


def test_changes_made_during_a_save_are_saved_too() -> None:
    async def main(world: World) -> list[int]:
        state = {"version": 0}
        file = ConfigFile(world, DIRECTORY, NAME)
        written: list[int] = []
        original = file.write

        async def slow(value: dict[str, Any]) -> None:
            await trio.sleep(1)
            await original(value)
            written.append(value["version"])

        file.write = slow  # type: ignore[method-assign]
        table = SavedTable(world, file, lambda: dict(state))

        async def change(version: int) -> None:
            state["version"] = version
            table.touch()
            await table.save()
            assert written[-1] >= version

        async with trio.open_nursery() as nursery:
            for version in (1, 2, 3):
                nursery.start_soon(change, version)
                await trio.sleep(0.4)
        assert not table.is_dirty
        return written

    assert run_solo(main).value == [1, 3]


def test_a_failed_save_is_tried_again() -> None:

    async def main(world: World) -> list[bool]:
        file = ConfigFile(world, DIRECTORY, NAME)
        attempts: list[bool] = []
        failing = [True]
        original = file.write

        async def write_or_fail(value: dict[str, Any]) -> None:
            if failing[0]:
                raise OSError(28, "No space left on device")
            await original(value)

        file.write = write_or_fail  # type: ignore[method-assign]
        table = SavedTable(world, file, lambda: {"version": 1})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                functools.partial(table.run, lambda failure: attempts.append(failure is None))
            )
            table.touch()
            await trio.sleep(2.5)
            failing[0] = False
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert file.load(version_of) == 1
        return attempts

    assert run_solo(main).value == [False, False, False, True]


def test_a_full_disk_keeps_table_and_backup() -> None:
    async def main(world: World) -> None:
        disk: Any = world.disk
        file = ConfigFile(world, DIRECTORY, NAME)
        for version in (1, 2):
            disk.replace_contents(f"{file.path}.tmp", bytes(5000)) if version > 1 else None
            await file.write({"version": version, "padding": "x" * LARGE})
            ensure_durable(world, "a table")
        before = {path: disk.contents(path) for path in disk.paths() if path.endswith("json.bak")}
        disk.quota = disk.allocated()
        with pytest.raises(OSError, match="space"):
            await file.write({"version": 3})
        disk.quota = None
        assert file.load(version_of) == 2
        assert {path: disk.contents(path) for path in before} == before
        await file.write({"version": 3})
        assert ConfigFile(world, DIRECTORY, f"{NAME}.bak").load(version_of) == 2

    assert run_solo(main).outcome == "ended"


@pytest.mark.parametrize("suffix", ["", ".bak", ".tmp"])
def test_a_folder_in_the_place_of_a_file_is_an_error(suffix: str) -> None:
    async def main(world: World) -> None:
        world.disk.makedirs(f"{DIRECTORY}/{NAME}{suffix}")
        with pytest.raises(ConfigFileError):
            ConfigFile(world, DIRECTORY, NAME).load(version_of)

    assert run_solo(main).outcome == "ended"


def test_saves_only_after_a_change() -> None:
    async def main(world: World) -> None:
        disk: Any = world.disk
        file = ConfigFile(world, DIRECTORY, NAME)
        saved = SavedTable(world, file, lambda: {"version": 1})
        await saved.save()
        assert not disk.exists(file.path)
        saved.touch()
        assert saved.is_dirty
        await saved.save()
        events = disk.events
        await saved.save()
        assert disk.events == events
        assert not saved.is_dirty

    assert run_solo(main).outcome == "ended"
