"""A simulated disk at rest, between two incarnations of its node."""

import errno
import os
from posixpath import normpath

from rocketbed.chaos.backends.sim.faults import disk_error
from rocketbed.chaos.backends.sim.namespace import Namespace


class DiskImage:
    """A disk at rest, for the next incarnation. Many can be started from it."""

    def __init__(self, namespace: Namespace | None = None) -> None:
        self._namespace = namespace or Namespace()

    def namespace(self) -> Namespace:
        return self._namespace.clone()

    def paths(self) -> list[str]:
        return sorted(self._namespace.visible.files)

    def contents(self, path: str) -> bytes:
        inode = self._namespace.visible.files.get(normpath(path))
        if inode is None:
            raise disk_error(errno.ENOENT, path)
        return inode.read(0, inode.length)

    def export(self, directory: str) -> None:
        """Write all files below a real directory, for readers that know nothing of simulation."""
        names = self._namespace.visible
        for path in sorted(names.children):
            os.makedirs(os.path.join(directory, path.lstrip("/")), exist_ok=True)
        for path in sorted(names.files):
            inode = names.files[path]
            with open(os.path.join(directory, path.lstrip("/")), "wb") as file:
                file.write(inode.data)
                file.truncate(inode.length)
