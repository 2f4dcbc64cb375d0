"""User, files and limits of a rocketbed process in a container."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON: Final = "/opt/rocketbed/bin/python"
"""In the image (compose/Dockerfile)."""
USER: Final = 10001
"""The image's user."""
MEMORY: Final = 1 << 30
"""Bytes a node may use, page cache included."""
STORE: Final = "store"


@dataclass(frozen=True, slots=True)
class Owner:
    """As whom a program runs, and whom its files belong to."""

    user: int
    group: int

    def __str__(self) -> str:
        return f"{self.user}:{self.group}"


OURS: Final = Owner(USER, USER)


def give(own: Path, owner: Owner = OURS) -> Owner:
    """Let a program have its machine's directory; a store that it has already is its own whole.

    As whom it is to run: a harness that is not root has nobody but itself. A directory comes after
    what is in it, so that one cut short is done again.
    """
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid())
    for path in _below(own, owner):
        if path.lstat().st_uid != owner.user:
            os.chown(path, owner.user, owner.group, follow_symlinks=False)
    return owner


def _below(directory: Path, owner: Owner) -> Iterator[Path]:
    for entry in os.scandir(directory):
        path = Path(entry.path)
        is_had = entry.name == STORE and path.lstat().st_uid == owner.user
        if entry.is_dir(follow_symlinks=False) and not is_had:
            yield from _below(path, owner)
        else:
            yield path
    yield directory
