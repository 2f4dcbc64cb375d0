"""One command at a time on a cluster's directory.

Two that start, stop or promote at once would each do half of it. What is locked is the directory
itself (flock), so there is no file to be left behind, and the lock of a killed command dies with
it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rocketbed.chaos.cluster.plan import ClusterError


@contextmanager
def claimed(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Keep other commands off a cluster's directory meanwhile. Does not wait.

    With `make` the directory is made; one that stays empty is taken away again. Without it nothing
    is done where there is none. Raises `ClusterError` when another command is at work there, or
    the directory cannot be had.
    """
    directory = directory.absolute()
    made: list[Path] = []
    try:
        descriptor = _locked(directory, make, made)
    except BlockingIOError:
        raise ClusterError(
            f"another command is using the cluster in {directory}: wait for it to finish, or"
            " interrupt it"
        ) from None
    except OSError as error:
        raise ClusterError(
            f"{directory} cannot be {'written' if make else 'read'}: {error}"
        ) from error
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):  # not empty, or gone
                path.rmdir()
        if descriptor is not None:
            os.close(descriptor)


def _locked(directory: Path, make: bool, made: list[Path]) -> int | None:
    """A descriptor that holds the lock; None where there is nothing. Raises `OSError`."""
    while True:
        if make:
            missing = [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            made[:] = missing
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if make:
                continue
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, directory):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody removed it just now


def _is_at(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False
