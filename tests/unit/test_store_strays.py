"""Names in a real store directory that no broker made: a sentence, never a traceback."""

import shutil
from pathlib import Path

import pytest
import trio

from rocketbed.node.store.errors import StoreError
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


@pytest.mark.parametrize("name", ["index", "rocketbed.tmp", "consumequeue/A/0", "lock"])
def test_what_is_in_the_way_is_named(root: Path, name: str) -> None:
    """A file where a directory belongs, and the other way round."""
    queue = next(path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file())
    path = queue.parent if name.startswith("consumequeue") else root / name
    if name == "lock":
        path.unlink()
        path.mkdir()
    else:
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("in the way")
    with pytest.raises(StoreError, match=path.name):
        trio.run(start, root)
