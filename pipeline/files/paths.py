"""The option `path`: which stores it means, and what they are called.

Pieces are separated by commas. Each is a directory, a pattern (`*`, `?`, `[...]`, `{a,b}`) that
directories with a commit log match, or a file that lists pieces, one a line; local, or behind a
scheme.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import Final

from rocketbed.pipeline.files.remote import storage_of
from rocketbed.pipeline.files.replicas import NotAStore, Replica
from rocketbed.pipeline.files.storage import Entry, Storage, plain_path, spread
from rocketbed.pipeline.option_table import OptionError, Settings

LIST_ENDING: Final = ".txt"
"""Of a file that lists stores behind a scheme, where asking for each piece what it is costs."""
LIST_MAX: Final = 64 << 20
"""Bytes of a file of stores that are read at most."""
PATH_MAX: Final = 4096 + 512
"""Of a piece with its names; the system has none longer."""
_UNFIT: Final = re.compile("[,=/]")
"""What cannot be in a name before an equals sign."""
_REMARK: Final = re.compile(r"(^|\s)#.*")
_PATTERN: Final = frozenset("*?[")
_CHOICE: Final = re.compile(r"\{([^{}]*)\}")
"""`{a,b}`, the innermost first."""


def parse_paths(text: str, settings: Settings = (), *, is_once: bool = False) -> list[Replica]:
    """Replicas of the option `path`: a root, or `broker/replica=root` or `broker=root`, by commas.

    A root without names is called after its last folder, and the ones above it where others are
    called so too, or a broker that is named; so are the replicas of a broker whose pattern several
    match. `is_once`: what is listed elsewhere may be kept, for a look at one moment. Raises
    `OptionError`, `NotAStore` for a pattern that no store matches.
    """
    seen: dict[str, list[Entry]] | None = {} if is_once else None
    replicas: list[Replica] = []
    unnamed: list[str] = []
    for piece in _listed(text, settings):
        name, root = _name(piece)
        roots = _expanded(root, settings, seen)
        if name is None:
            unnamed += roots
            replicas += [Replica("", "", one) for one in roots]
            continue
        broker, slash, replica = name.partition("/")
        if not broker or not root or (slash and not replica):
            raise OptionError(f"path {piece!r}: expected broker/replica=root")
        if replica and len(roots) > 1:
            raise OptionError(f"path {piece!r}: {len(roots)} stores match, for one replica")
        names = {roots[0]: replica or broker} if len(roots) == 1 else _names(roots, frozenset())
        replicas += [Replica(broker, names[one], one) for one in roots]
    names = _names(unnamed, {one.broker for one in replicas if one.broker})
    found = [
        each._replace(
            broker=each.broker or names[each.root],
            name=each.name or names[each.root],
            storage=storage_of(each.root, settings, seen),
        )
        for each in replicas
    ]
    if not found:
        raise OptionError(
            "option path is missing, or its list is empty: the root of a store, or"
            " broker/replica=root,..."
        )
    _check_apart(found)
    if len({(each.broker, each.name) for each in found}) < len(found):
        raise OptionError(
            f"two stores have the same name in path {text!r}: give them different names"
        )
    return found


def _listed(text: str, settings: Settings, near: str = "") -> Iterator[str]:
    """The pieces of a path, those of the files that list them in their place."""
    for piece in _pieces(text, near):
        name, root = _name(piece)
        root = plain_path(root)
        if near and "://" not in root:
            root = plain_path(os.path.join(near, root))
        storage = storage_of(root, settings)
        may_list = storage.is_local or root.endswith(LIST_ENDING)
        is_file = may_list and storage.is_file(root)
        if is_file and name is not None:
            raise NotAStore(
                f"path {piece}: {root} is a file; {name}= names a store, also in a list of them"
            )
        if near and is_file:
            raise NotAStore(f"path {root} is no store directory: in a list of stores are no files")
        if not is_file:
            yield root if name is None else f"{name}={root}"
            continue
        content = storage.content(root, LIST_MAX).decode("utf-8-sig", errors="replace")
        if "\0" in content:
            raise NotAStore(f"path {root}: a file, and no list of stores, which is text")
        for line in content.splitlines():
            line = _REMARK.sub("", line)
            yield from _listed(line, settings, near=os.path.dirname(root))


def _name(piece: str) -> tuple[str | None, str]:
    """A piece as the name before its `=`, if it has one, and its root."""
    name, separator, root = piece.partition("=")
    is_path = name.startswith("/") or "://" in name or name.count("/") > 1
    if not separator or is_path or os.path.isdir(piece):
        return None, piece
    return name, root


def _expanded(root: str, settings: Settings, seen: dict[str, list[Entry]] | None) -> list[str]:
    """The stores that a pattern means; a root that is none as it is. Raises `NotAStore`."""
    storage = storage_of(root, settings, seen)
    choices = _choices(root)
    if not (_PATTERN & set(root) or choices != [root]) or storage.is_dir(root):
        return [root]
    found = _found(storage, root)  # a directory may be called `{a,b}`
    if not found and choices != [root]:
        found = [*dict.fromkeys(chain(*(_found(storage, one) for one in choices)))]
    is_store = spread(
        lambda one: storage.is_dir(f"{one}/commitlog"), found, is_local=storage.is_local
    )
    stores = [one for one, is_one in zip(found, is_store, strict=True) if is_one]
    if not stores:
        told = f"{len(found)} directories match, none has a commitlog" if found else "none is there"
        raise NotAStore(f"path {root}: no store directory matches: {told}")
    return stores


def _choices(pattern: str) -> list[str]:
    """The patterns that one with `{a,b}` in it means."""
    choice = _CHOICE.search(pattern)
    if choice is None:
        return [pattern]
    before, behind = pattern[: choice.start()], pattern[choice.end() :]
    found = (_choices(f"{before}{one}{behind}") for one in choice[1].split(","))
    return [*dict.fromkeys(chain(*found))]


def _found(storage: Storage, pattern: str) -> list[str]:
    """Directories that match a pattern."""
    if not _PATTERN & set(pattern):
        return [pattern] if storage.is_dir(pattern) else []
    scheme, separator, rest = pattern.rpartition("://")
    start, *parts = rest.split("/")
    if separator:
        start = f"{scheme}://{start}"
    elif start:
        start, parts = ".", [start, *parts]
    return list(_matching(storage, start, parts))


def _matching(storage: Storage, directory: str, parts: Sequence[str]) -> Iterator[str]:
    """Directories below one that match a pattern for each level."""
    if not parts:
        yield directory
        return
    part, *rest = parts
    if not part or not _PATTERN & set(part):
        yield from _matching(storage, f"{directory}/{part}" if part else directory, rest)
        return
    pattern = part.replace("[^", "[!")  # as Hadoop's, and Spark's, say it
    for name in storage.folders(directory or "/"):
        if fnmatchcase(name, pattern) and (part.startswith(".") or not name.startswith(".")):
            yield from _matching(storage, f"{directory}/{name}", rest)


def _check_apart(replicas: Sequence[Replica]) -> None:
    """Raises `OptionError` where two of the directories have one log: its rows would be double."""
    logs: dict[object, Replica] = {}
    for replica in replicas:
        try:
            found = replica.storage.identity(os.path.join(replica.root, "commitlog"))
        except OSError:
            continue  # told when it is read
        other = logs.setdefault(found, replica)
        if other is not replica:
            raise OptionError(f"path: {other.root} and {replica.root} are one store: give it once")


def _pieces(text: str, near: str) -> Iterator[str]:
    """The directories of a path, with their names; a directory may have a comma in its own, or a
    space at an end."""
    pieces = text.split(",")
    while pieces:
        joined = ((length, ",".join(pieces[:length])) for length in range(len(pieces), 0, -1))
        there = ((length, _as_there(piece, near)) for length, piece in joined)
        length, found = next((one for one in there if one[1]), (0, ""))
        if not length:  # a comma within `{a,b}` separates no pieces
            starts = ((n, ",".join(pieces[:n]).strip()) for n in range(1, len(pieces) + 1))
            whole = (one for one in starts if one[1].count("{") <= one[1].count("}"))
            length, found = next(whole, (1, pieces[0].strip()))
        del pieces[:length]
        if found:
            yield found


def _as_there(piece: str, near: str) -> str:
    """A piece with those spaces around it that are of its name; empty where nothing is there."""
    if len(piece) > PATH_MAX:
        return ""
    for one in dict.fromkeys((piece.lstrip(), piece.strip(), piece)):
        name, _, root = one.partition("=")
        for path in (one, root if "," not in name else ""):
            if path and os.path.exists(os.path.join(near, plain_path(path))):
                return one
    return ""


def _names(roots: Sequence[str], taken: Set[str]) -> dict[str, str]:
    """Directories without names, called so that no two are one broker, and none is in `taken`."""
    parts = {root: _parts(root) for root in roots}
    most = max(map(len, parts.values()), default=1)
    names: dict[str, str] = {}
    for depth in range(1, most + 1):
        joined = {root: "-".join(one[-depth:]).strip() for root, one in parts.items()}
        names = {root: _UNFIT.sub("-", one) for root, one in joined.items()}
        if len(set(names.values())) == len(parts) and taken.isdisjoint(names.values()):
            break
    if len(set(names.values())) < len(parts) == len(set(map(tuple, parts.values()))):
        names = _numbered(parts, taken)
    for root, name in names.items():
        if name in taken:
            raise OptionError(
                f"path: {root} would be called {name}, as a broker that is named there: "
                f"name it too, broker/replica={root}"
            )
    return names


def _numbered(parts: Mapping[str, Sequence[str]], taken: Set[str]) -> dict[str, str]:
    """Names of directories that differ only in what does not fit in a name."""
    most = max(map(len, parts.values()))
    depths = (
        n for n in range(1, most) if len({(*one[-n:],) for one in parts.values()}) == len(parts)
    )
    depth = next(depths, most)
    names: dict[str, str] = {}
    for root, one in parts.items():
        name = _UNFIT.sub("-", "-".join(one[-depth:]).strip())
        others = (f"{name}-{number}" for number in count(2))
        free = (each for each in chain([name], others) if each not in {*taken, *names.values()})
        names[root] = next(free)
    return names


def _parts(root: str) -> list[str]:
    whole = root if "://" in root else os.path.abspath(root)
    return [part for part in whole.split("/") if part and not part.endswith(":")]
