"""User, files and limits of a rocketbed process in a container."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON: Final = "/opt/rocketbed/bin/python"
"""Path in the image (compose/Dockerfile)."""
USER: Final = 10001
"""User of the image."""
MEMORY: Final = 1 << 30
"""Memory of a node, bytes, page cache included."""
STORE: Final = "store"


@dataclass(frozen=True, slots=True)
class Owner:
    """User as which a program runs, and who owns its files."""

    user: int
    group: int

    def __str__(self) -> str:
        return f"{self.user}:{self.group}"


OURS: Final = Owner(USER, USER)


def give(own: Path, owner: Owner = OURS) -> Owner:
    """Give a program's user its machine's directory; a store that it already owns is left alone.

    Returns the user as which it is to run: a harness that is not root can only use its own. A
    directory is changed after its content, so that an interrupted change is completed by the next
    call.
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
