"""Names in a real store directory that no broker made: a sentence, never a traceback."""

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from rocketbed.node.store.errors import StoreError
from rocketbed.node.store.heal import heal
from rocketbed.node.store.store import MessageStore
from rocketbed.world.real import real_world
from tests.support import own_store


async def start(root: Path) -> int:
    store = await MessageStore.open(real_world("test"), own_store.config(root), own_store.Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        end = store.max_offset
        await store.close()
    return end


async def check(root: Path) -> None:
    await MessageStore.check(real_world("test"), own_store.config(root))


def dangling(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    trio.run(own_store.write, tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    "name", ["commitlog/00000000000099999744", "consumequeue/Topic0", "index/20251120000000000"]
)
def test_a_dangling_link_is_left_alone(root: Path, name: str) -> None:
    path = root / f"{name}x" if name.startswith("consumequeue") else root / name
    dangling(path)
    assert trio.run(start, root) > 0
    assert path.is_symlink()


@pytest.mark.parametrize("name", ["abort", "checkpoint", "rocketbed.ckpt", "rocketbed.flushed"])
def test_a_folder_where_a_file_belongs_is_named(root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir()
    with pytest.raises(StoreError, match=name):
        trio.run(start, root)


@pytest.mark.parametrize("name", ["index", "rocketbed.tmp", "lock"])
def test_obstacles_are_named(root: Path, name: str) -> None:
    """A file where a directory belongs, and the other way round."""
    path = root / name
    if name == "lock":
        path.unlink()
        path.mkdir()
    else:
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("in the way")
    with pytest.raises(StoreError, match=path.name):
        trio.run(start, root)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, dangling])
@pytest.mark.parametrize("depth", ["file", "queue", "topic", "all"])
def test_obstacle_of_a_queue_is_moved_aside(
    root: Path, depth: str, make: Callable[[Path], None]
) -> None:
    """Its units are derived: they are rebuilt from the log."""
    file = next(path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file())
    was = file.read_bytes()
    path = dict(zip(("file", "queue", "topic", "all"), (file, *file.parents), strict=False))[depth]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)
    is_in_the_way = path.is_dir() == (path == file)
    assert trio.run(start, root) > 0
    assert file.read_bytes() == was
    aside = root / "rocketbed.cut" / "consumequeue.1" / path.relative_to(root / "consumequeue")
    assert (aside.exists() or aside.is_symlink()) == is_in_the_way


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
        bound.bind(path.name)  # the whole path may be longer than a socket's address


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


FILES = ("abort", "checkpoint", "rocketbed.ckpt", "rocketbed.flushed", "lock")


@pytest.mark.parametrize("make", [pipe, unix_socket, device])
@pytest.mark.parametrize("name", FILES)
def test_non_file_in_place_of_a_file_is_named(
    root: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A pipe was waited for, in silence, until somebody wrote into it."""
    (root / name).unlink(missing_ok=True)
    make(root / name)
    for look in (start, check):
        with pytest.raises(StoreError, match=name):
            trio.run(look, root)


@pytest.mark.parametrize("make", [Path.mkdir, pipe, unix_socket, device])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_non_file_in_place_of_a_segment_is_named(
    root: Path, place: int, make: Callable[[Path], None]
) -> None:
    """In place of the first segment, of the last, and of the next one."""
    segments = sorted((root / "commitlog").iterdir())
    size = segments[0].stat().st_size
    path = (segments[0], segments[-1], root / f"commitlog/{int(segments[-1].name) + size:020d}")[
        place
    ]
    path.unlink(missing_ok=True)
    make(path)
    for look in (start, check):
        with pytest.raises(StoreError) as caught:
            trio.run(look, root)
        assert path.name in str(caught.value) or place == 0


def test_a_pipe_elsewhere_is_left_alone(root: Path) -> None:
    paths = [
        root / "commitlog" / f"{1 << 50:020d}",
        root / "index" / "20991120000000000",
        root / "consumequeue" / "Other",
    ]
    for path in paths:
        pipe(path)
    assert trio.run(start, root) > 0
    assert all(path.is_fifo() for path in paths)


def test_heal_names_a_folder_with_a_segments_name(root: Path) -> None:
    segment = next((root / "commitlog").iterdir())
    segment.unlink()
    segment.mkdir()

    async def fetch(*_: object) -> None: ...

    with pytest.raises(StoreError, match=segment.name):
        trio.run(heal, real_world("test"), own_store.config(root), fetch)
