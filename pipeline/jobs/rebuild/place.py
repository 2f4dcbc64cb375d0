"""Output directory of `rebuild`: never a store, and with a complete result or none."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.jobs.rebuild.files import Written
from rocketbed.pipeline.jobs.rebuild.plan import index_names

PARTS: Final = ("consumequeue", "batchconsumequeue", "index")
STAGING: Final = "rebuild.staging"
BLOBS: Final = "blobs"


def check_place(out: Path, root: Path, *, force: bool) -> None:
    """Raise `WrongUsage` for a directory with other files, above all a store.

    `root` is the store that is read. `force`: an earlier result may be replaced.
    """
    root = root.resolve()
    place = out.resolve()
    if place == root or (place / "commitlog").exists():
        raise WrongUsage(
            f"{out} is a store itself: give another --out, and move the result in place when the"
            " broker is stopped (rocketbed store rebuild --in-place does that)"
        )
    if place.is_relative_to(root):
        raise WrongUsage(f"{out} is within the store: give another --out")
    if out.exists() and not out.is_dir():
        raise WrongUsage(f"{out} is not a directory")
    if out.is_dir():
        names = [entry.name for entry in out.iterdir() if entry.name != STAGING]
        if names and not force:
            raise WrongUsage(
                f"{out} holds {names[0]}: give an empty directory, or replace queues and index"
                " there with --force"
            )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Create this directory and lock it against other rebuilds. Raises `WrongUsage`, `OSError`."""
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WrongUsage(f"another rebuild is writing to {out}") from error
        yield
    finally:
        os.close(descriptor)


def named(staging: Path, files: list[Written]) -> list[Written]:
    """Rename index files to their names, and return all files, sorted."""
    index = [file for file in files if file.path.startswith("index/")]
    named = [file for file in files if file.path and not file.path.startswith("index/")]
    for file, name in index_names(index):
        path = f"index/{name}"
        os.rename(staging / file.path, staging / path)
        named.append(file._replace(path=path))
    return [*sorted(named), *(file for file in files if not file.path)]


def put_in_place(staging: Path, out: Path) -> None:
    """Move the parts into the output directory; earlier ones are moved to the staging directory."""
    replaced = staging / "replaced"
    replaced.mkdir()
    for part in PARTS:
        if (out / part).exists():
            os.rename(out / part, replaced / part)
        if (staging / part).exists():
            for folder, _, _ in os.walk(staging / part):
                _sync_directory(folder)
            os.rename(staging / part, out / part)
    _sync_directory(out)


def _sync_directory(path: "str | Path") -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
