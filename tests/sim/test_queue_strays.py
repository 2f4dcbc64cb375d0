"""Files in place of a queue are moved aside: its units are derived, the log is the truth."""

from collections.abc import Callable

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.solo import SoloRun
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.store import MessageStore
from tests.support.sim.filled_store import fill_and_close
from tests.support.sim.store_session import ROOT, edited, pull, put, session, settings, settle

BATCH = 1
SEGMENT = f"{0:020d}"
STRAYS = ["consumequeue/New", "consumequeue/New/0", f"consumequeue/New/0/{SEGMENT}/x"]


def file_at(name: str) -> Callable[[SimDisk], None]:
    def change(disk: SimDisk) -> None:
        path = f"{ROOT}/{name}"
        disk.makedirs(path.rpartition("/")[0])
        disk.replace_contents(path, b"somebody's")

    return change


async def send_to_both(store: MessageStore) -> tuple[int, int, str]:
    """Messages of the new topic and of the old one, and the store's trouble."""
    put(store, topic="New", body=b"new")
    put(store, body=b"old")
    await settle(store)
    counts = len(pull(store, "New")), len(pull(store))
    await store.close()
    return *counts, store.trouble()


def moved_aside(run: SoloRun) -> dict[str, bytes]:
    """Return the files that were moved aside, by their new path."""
    base = f"{ROOT}/rocketbed.cut/"
    paths = [path for path in run.image.paths() if path.startswith(base)]
    return {path.removeprefix(base): run.image.contents(path) for path in paths}


@pytest.mark.parametrize("name", STRAYS)
def test_obstacle_of_a_new_queue_is_moved_aside(name: str) -> None:
    whole = session(fill_and_close)
    count = session(count_of_t, image=whole.image).value
    run = session(send_to_both, image=edited(whole.image, file_at(name)))
    assert run.value == (1, count + 1, "")
    assert list(moved_aside(run).values()) == [b"somebody's"]
    warnings = [line for line in run.log if line.event == "store.moved_aside"]
    assert len(warnings) == 1
    assert warnings[0].fields["path"] == f"{ROOT}/{name.removesuffix('/x')}"
    second_run = session(send_to_both, image=run.image)
    assert second_run.value == (2, count + 2, "")
    assert moved_aside(second_run) == moved_aside(run)


async def count_of_t(store: MessageStore) -> int:
    return len(pull(store))


@pytest.mark.parametrize("name", ["T", "T/0", f"T/0/{SEGMENT}", ""])
def test_a_queue_that_was_replaced_is_built_again(name: str) -> None:
    whole = session(fill_and_close)
    count = session(count_of_t, image=whole.image).value
    path = f"consumequeue/{name}".rstrip("/")

    def change(disk: SimDisk) -> None:
        for file in disk.paths():
            if file.startswith(f"{ROOT}/{path}/") or file == f"{ROOT}/{path}":
                disk.remove_name(file)
        remove_folders(disk, f"{ROOT}/{path}")
        file_at(f"{path}/x" if SEGMENT in name else path)(disk)

    run = session(count_of_t, image=edited(whole.image, change))
    assert run.value == count
    assert list(moved_aside(run).values()) == [b"somebody's"]


def remove_folders(disk: SimDisk, path: str) -> None:
    for name in disk.listdir(path):
        remove_folders(disk, f"{path}/{name}")
    if disk.is_dir(path):
        disk.rmdir(path)


def test_a_second_stray_does_not_replace_the_first() -> None:
    whole = session(fill_and_close)
    first = session(send_to_both, image=edited(whole.image, file_at("consumequeue/New")))

    def change(disk: SimDisk) -> None:
        for file in disk.paths():
            if file.startswith(f"{ROOT}/consumequeue/New/"):
                disk.remove_name(file)
        remove_folders(disk, f"{ROOT}/consumequeue/New")
        file_at("consumequeue/New")(disk)

    second = session(send_to_both, image=edited(first.image, change))
    assert second.value[0] == 2
    assert len(moved_aside(second)) == 2


@pytest.mark.parametrize("name", ["rocketbed.tmp", "rocketbed.cut"])
def test_file_in_place_of_our_folder_stops_the_start(name: str) -> None:
    image = edited(session(fill_and_close).image, file_at("x"))

    def change(disk: SimDisk) -> None:
        remove_folders(disk, f"{ROOT}/{name}")
        file_at(name)(disk)

    with pytest.raises(BadStoreDirectory, match=name):
        session(count_of_t, image=edited(image, change))


def test_immovable_obstacle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    whole = session(fill_and_close)

    def change(disk: SimDisk) -> None:
        for file in disk.paths():
            if file.startswith(f"{ROOT}/consumequeue/T/"):
                disk.remove_name(file)
        remove_folders(disk, f"{ROOT}/consumequeue/T")
        file_at("consumequeue/T")(disk)

    image = edited(whole.image, change)
    monkeypatch.setattr("rocketbed.node.store.aside._move", refuse)
    with pytest.raises(BadStoreDirectory, match=f"{ROOT}/consumequeue/T: "):
        session(count_of_t, image=image, config=settings())
