"""Names of a simulated disk: the visible ones, and those that a power cut would leave.

A name created, moved or removed is durable only once its directory was synced; until then the
change waits in a list. A power cut keeps some of that list: changes of one name stay in order,
changes of different names are independent, as POSIX allows (ext4 orders them all; `prefix` is
that). A new directory needs no sync of its parent if it was synced itself: every journalling file
system writes the path to what it syncs. A renamed file moves as a whole: old name or new, never
both.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from posixpath import dirname
from random import Random

from rocketbed.chaos.backends.sim.inode import Inode, survivors


class Names:
    """Files by path, and directories with their children. No notion of durability."""

    __slots__ = ("children", "files")

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.children: dict[str, dict[str, None]] = {"/": {}, ".": {}}
        """Directory -> names in it; a dict, for its order."""

    def put(self, path: str, inode: Inode) -> None:
        self.files[path] = inode
        directory, name = split(path)
        self.children[directory][name] = None

    def drop(self, path: str) -> Inode | None:
        inode = self.files.pop(path, None)
        if inode is not None:
            directory, name = split(path)
            self.children[directory].pop(name, None)
        return inode

    def add_directory(self, path: str) -> None:
        """Make a directory; its parent exists."""
        self.children.setdefault(path, {})
        directory, name = split(path)
        self.children[directory][name] = None

    def drop_directory(self, path: str) -> None:
        """Remove a directory, with everything below it."""
        below = path + "/"
        for file in [file for file in self.files if file.startswith(below)]:
            self.drop(file)
        for child in [child for child in self.children if child.startswith(below)]:
            del self.children[child]
        self.children.pop(path, None)
        directory, name = split(path)
        if directory in self.children:
            self.children[directory].pop(name, None)

    def move_directory(self, old: str, new: str) -> None:
        """Move a directory, if it exists, to a name whose parent exists."""
        if old not in self.children:
            return
        self.files = {moved(path, old, new): inode for path, inode in self.files.items()}
        self.children = {moved(path, old, new): names for path, names in self.children.items()}
        directory, name = split(old)
        self.children[directory].pop(name, None)
        directory, name = split(new)
        self.children.setdefault(directory, {})[name] = None


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Change of names that waits for its directory to be synced."""

    kind: str
    """create, unlink, rename, mkdir or rmdir."""
    path: str
    target: str = ""
    """New name, for a rename."""
    inode: Inode | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.path, self.target) if self.target else (self.path,)

    @property
    def directory(self) -> str:
        """The directory whose sync makes it durable; for a rename that of the new name."""
        return split(self.target or self.path)[0]

    def apply(self, names: Names) -> None:
        """Carry it out, as far as the names that it needs exist."""
        if self.kind == "mkdir":
            if split(self.path)[0] in names.children:
                names.add_directory(self.path)
        elif self.kind == "rmdir":
            names.drop_directory(self.path)
        elif self.kind == "unlink":
            names.drop(self.path)
        else:
            if self.kind == "rename":
                names.drop(self.path)
            destination = self.target or self.path
            if self.inode is not None and split(destination)[0] in names.children:
                names.put(destination, self.inode)


class Namespace:
    """Visible names, durable names and the changes between them."""

    __slots__ = ("durable", "pending", "visible")

    def __init__(self) -> None:
        self.visible = Names()
        self.durable = Names()
        self.pending: list[Change] = []

    def clone(self) -> "Namespace":
        """Return a twin with twins of all files; a file with several names keeps them."""
        return deepcopy(self)

    def change(self, change: Change) -> None:
        """Carry out a change; visible at once, durable later."""
        change.apply(self.visible)
        self.pending.append(change)

    def move_directory(self, old: str, new: str) -> None:
        """Rename a directory, with everything below it, durably."""
        self.visible.move_directory(old, new)
        self.durable.move_directory(old, new)
        self.pending = [
            replace(
                change,
                path=moved(change.path, old, new),
                target=moved(change.target, old, new),
            )
            for change in self.pending
        ]

    def changes_in(self, directory: str) -> list[Change]:
        """Return the changes that a sync of this directory, begun now, will make durable."""
        way = {directory}
        parent = directory
        while (parent := split(parent)[0]) not in way:
            way.add(parent)
        chosen: list[Change] = []
        for change in reversed(self.pending):
            # If a directory was removed and created again, a journal keeps that order.
            about_directory = change.kind in ("mkdir", "rmdir")
            if change.directory == directory or (about_directory and change.path in way):
                chosen.append(change)
        return chosen[::-1]

    def make_durable(self, changes: list[Change]) -> None:
        waiting = set(changes)
        for change in self.pending:
            if change in waiting:
                change.apply(self.durable)
                if change.kind == "rename":
                    # Otherwise a pending change would put the file back under its old name.
                    waiting.update(self._arrivals(change.path, change.inode))
        self.pending = [change for change in self.pending if change not in waiting]

    def _arrivals(self, path: str, inode: Inode | None) -> list[Change]:
        """Return the changes that gave a file the name it was then moved away from."""
        return [
            change
            for change in self.pending
            if change.inode is inode and (change.target or change.path) == path
        ]

    def lose_power(self, mode: str, random: Random) -> int:
        """Reduce the names to what a power cut leaves. Return how many changes were lost."""
        # Names with a lost change: later changes of the same name build on it, so they are lost
        # too.
        broken: set[str] = set()
        lost = 0
        survives = survivors(mode, random, len(self.pending))
        for change, survived in zip(self.pending, survives, strict=True):
            if survived and broken.isdisjoint(change.names):
                change.apply(self.durable)
            else:
                broken.update(change.names)
                lost += 1
        self.pending = []
        self.visible.files = dict(self.durable.files)
        self.visible.children = {
            directory: dict(names) for directory, names in self.durable.children.items()
        }
        return lost


def moved(path: str, old: str, new: str) -> str:
    """Return a path after `old`, a directory, was renamed to `new`."""
    if path == old or path.startswith(f"{old}/"):
        return new + path[len(old) :]
    return path


def split(path: str) -> tuple[str, str]:
    """Return directory and name of a normalised path; `.` holds relative ones, `/` is its own
    parent."""
    directory = dirname(path) or ("/" if path == "/" else ".")
    return directory, path[path.rfind("/") + 1 :]
