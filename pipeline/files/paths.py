"""Parse the option `path`: find its stores, and name them.

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
"""Ending of a remote file that lists stores: to ask for the kind of each piece would be slow."""
LIST_MAX: Final = 64 << 20
"""Maximum bytes read of a file that lists stores."""
PATH_MAX: Final = 4096 + 512
"""Maximum length of a piece with its names; the system has no longer paths."""
_UNFIT: Final = re.compile("[,=/]")
"""Characters that a name before an equals sign cannot have."""
_REMARK: Final = re.compile(r"(^|\s)#.*")
_PATTERN: Final = frozenset("*?[")
_CHOICE: Final = re.compile(r"\{([^{}]*)\}")
"""Pattern of a choice `{a,b}`, the innermost first."""


def parse_paths(text: str, settings: Settings = (), *, is_once: bool = False) -> list[Replica]:
    """Return the replicas of the option `path`: a root, or `broker/replica=root` or `broker=root`,
    by commas.

    A root without names is named after its last folder, with the folders above it if that name is
    not unique; so are the replicas of a broker whose pattern matches several stores. `is_once`:
    remote listings may be cached, for a look at one moment. Raises `OptionError`, `NotAStore` for a
    pattern that matches no store.
    """
    listings: dict[str, list[Entry]] | None = {} if is_once else None
    replicas: list[Replica] = []
    unnamed: list[str] = []
    for piece in _listed(text, settings):
        name, root = _name(piece)
        roots = _expanded(root, settings, listings)
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
    named = [
        each._replace(
            broker=each.broker or names[each.root],
            name=each.name or names[each.root],
            storage=storage_of(each.root, settings, listings),
        )
        for each in replicas
    ]
    if not named:
        raise OptionError(
            "option path is missing, or its list is empty: the root of a store, or"
            " broker/replica=root,..."
        )
    _check_apart(named)
    if len({(each.broker, each.name) for each in named}) < len(named):
        raise OptionError(
            f"two stores have the same name in path {text!r}: give them different names"
        )
    return named


def _listed(text: str, settings: Settings, near: str = "") -> Iterator[str]:
    """Yield the pieces of a path, with a file that lists stores replaced by its pieces."""
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
    """Split a piece into the name before its `=`, if it has one, and its root."""
    name, separator, root = piece.partition("=")
    is_path = name.startswith("/") or "://" in name or name.count("/") > 1
    if not separator or is_path or os.path.isdir(piece):
        return None, piece
    return name, root


def _expanded(root: str, settings: Settings, listings: dict[str, list[Entry]] | None) -> list[str]:
    """Expand a pattern to its stores; another root is returned unchanged. Raises `NotAStore`."""
    storage = storage_of(root, settings, listings)
    choices = _choices(root)
    if not (_PATTERN & set(root) or choices != [root]) or storage.is_dir(root):
        return [root]
    directories = _matches(storage, root)  # a directory may be called `{a,b}`
    if not directories and choices != [root]:
        directories = [*dict.fromkeys(chain(*(_matches(storage, one) for one in choices)))]
    is_store = spread(
        lambda root: storage.is_dir(f"{root}/commitlog"), directories, is_local=storage.is_local
    )
    stores = [one for one, is_one in zip(directories, is_store, strict=True) if is_one]
    if not stores:
        reason = (
            f"{len(directories)} directories match, none has a commitlog"
            if directories
            else "none is there"
        )
        raise NotAStore(f"path {root}: no store directory matches: {reason}")
    return stores


def _choices(pattern: str) -> list[str]:
    """Expand the `{a,b}` of a pattern to several patterns."""
    choice = _CHOICE.search(pattern)
    if choice is None:
        return [pattern]
    before, after = pattern[: choice.start()], pattern[choice.end() :]
    expanded = (_choices(f"{before}{one}{after}") for one in choice[1].split(","))
    return [*dict.fromkeys(chain(*expanded))]


def _matches(storage: Storage, pattern: str) -> list[str]:
    """Directories that match a pattern."""
    if not _PATTERN & set(pattern):
        return [pattern] if storage.is_dir(pattern) else []
    scheme, separator, path = pattern.rpartition("://")
    start, *parts = path.split("/")
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
    part, *remaining = parts
    if not part or not _PATTERN & set(part):
        yield from _matching(storage, f"{directory}/{part}" if part else directory, remaining)
        return
    pattern = part.replace("[^", "[!")  # the syntax of Hadoop and Spark
    for name in storage.folders(directory or "/"):
        if fnmatchcase(name, pattern) and (part.startswith(".") or not name.startswith(".")):
            yield from _matching(storage, f"{directory}/{name}", remaining)


def _check_apart(replicas: Sequence[Replica]) -> None:
    """Raise `OptionError` if two directories have the same log: its rows would be read twice."""
    logs: dict[object, Replica] = {}
    for replica in replicas:
        try:
            identity = replica.storage.identity(os.path.join(replica.root, "commitlog"))
        except OSError:
            continue  # reported when it is read
        earlier = logs.setdefault(identity, replica)
        if earlier is not replica:
            raise OptionError(
                f"path: {earlier.root} and {replica.root} are one store: give it once"
            )


def _pieces(text: str, near: str) -> Iterator[str]:
    """Yield the directories of a path, with their names. A directory's own name may have a comma in
    it, or a space at an end."""
    pieces = text.split(",")
    while pieces:
        joined = ((length, ",".join(pieces[:length])) for length in range(len(pieces), 0, -1))
        existing = ((length, _as_existing(piece, near)) for length, piece in joined)
        length, piece = next((one for one in existing if one[1]), (0, ""))
        if not length:  # a comma within `{a,b}` separates no pieces
            starts = ((n, ",".join(pieces[:n]).strip()) for n in range(1, len(pieces) + 1))
            whole = (one for one in starts if one[1].count("{") <= one[1].count("}"))
            length, piece = next(whole, (1, pieces[0].strip()))
        del pieces[:length]
        if piece:
            yield piece


def _as_existing(piece: str, near: str) -> str:
    """Return a piece with the spaces around it that are part of an existing path; empty if no such
    path exists."""
    if len(piece) > PATH_MAX:
        return ""
    for candidate in dict.fromkeys((piece.lstrip(), piece.strip(), piece)):
        name, _, root = candidate.partition("=")
        for path in (candidate, root if "," not in name else ""):
            if path and os.path.exists(os.path.join(near, plain_path(path))):
                return candidate
    return ""


def _names(roots: Sequence[str], reserved: Set[str]) -> dict[str, str]:
    """Name directories so that no two brokers have the same name, and none is in `reserved`."""
    parts = {root: _parts(root) for root in roots}
    most = max(map(len, parts.values()), default=1)
    names: dict[str, str] = {}
    for depth in range(1, most + 1):
        joined = {root: "-".join(one[-depth:]).strip() for root, one in parts.items()}
        names = {root: _UNFIT.sub("-", one) for root, one in joined.items()}
        if len(set(names.values())) == len(parts) and reserved.isdisjoint(names.values()):
            break
    if len(set(names.values())) < len(parts) == len(set(map(tuple, parts.values()))):
        names = _numbered(parts, reserved)
    for root, name in names.items():
        if name in reserved:
            raise OptionError(
                f"path: {root} would be called {name}, as a broker that is named there: "
                f"name it too, broker/replica={root}"
            )
    return names


def _numbered(parts: Mapping[str, Sequence[str]], reserved: Set[str]) -> dict[str, str]:
    """Name directories that differ only in characters that a name cannot have."""
    most = max(map(len, parts.values()))
    depths = (
        n
        for n in range(1, most)
        if len({(*path_parts[-n:],) for path_parts in parts.values()}) == len(parts)
    )
    depth = next(depths, most)
    names: dict[str, str] = {}
    for root, path_parts in parts.items():
        name = _UNFIT.sub("-", "-".join(path_parts[-depth:]).strip())
        numbered = (f"{name}-{number}" for number in count(2))
        free = (
            each for each in chain([name], numbered) if each not in {*reserved, *names.values()}
        )
        names[root] = next(free)
    return names


def _parts(root: str) -> list[str]:
    whole = root if "://" in root else os.path.abspath(root)
    return [part for part in whole.split("/") if part and not part.endswith(":")]
