"""Store directories by the names that the option `path` gives them."""

import logging
import os
from collections.abc import Container, Iterable, Sequence, Set
from typing import Final, NamedTuple

from rocketbed.inspect.directory import read_topic_table
from rocketbed.inspect.files import SegmentFile, list_segments
from rocketbed.inspect.marks import CKPT_NAME, FLUSHED_NAME, read_marks
from rocketbed.pipeline.errors import Condition, PipelineError
from rocketbed.pipeline.option_table import OptionError

logger = logging.getLogger("rocketbed.pipeline")

UNKNOWN: Final = -1
"""The offset of a mark that is not there."""


class NotAStore(PipelineError):
    """A path of the option `path` is no store directory."""

    condition = Condition.NOT_A_STORE


class Replica(NamedTuple):
    """One store directory: which broker group it is of, what it is called there, where it lies."""

    broker: str
    name: str
    root: str


def parse_paths(text: str) -> list[Replica]:
    """Replicas of the option `path`: a root, or `broker/replica=root` or `broker=root`, by commas.

    A root without names is called after its last folder, and the ones above it where others are
    called so too, or a broker that is named. Raises `OptionError`.
    """
    replicas: list[Replica] = []
    unnamed: list[str] = []
    for piece in _pieces(text):
        name, separator, root = piece.partition("=")
        if os.path.isdir(piece) or not separator:
            unnamed.append(piece)
            replicas.append(Replica("", "", piece))
            continue
        broker, slash, replica = name.partition("/")
        if not broker or not root or (slash and not replica):
            raise OptionError(f"path {piece!r}: expected broker/replica=root")
        replicas.append(Replica(broker, replica or broker, root))
    names_of = _unnamed(unnamed, {one.broker for one in replicas if one.broker})
    replicas = [one if one.broker else names_of[one.root] for one in replicas]
    if not replicas:
        raise OptionError("option path is missing: the root of a store, or broker/replica=root,...")
    names = [(replica.broker, replica.name) for replica in replicas]
    if len(set(names)) < len(names):
        raise OptionError(
            f"two stores have the same name in path {text!r}: give them different names"
        )
    _check_apart(replicas)
    return replicas


def check_topics(
    replicas: Sequence[Replica], asked: Iterable[str] | None, empty: Container[Replica] = ()
) -> None:
    """Raises `OptionError` for a topic that none of the stores knows.

    A log with neither queues nor a topic table, a copy for instance, may hold records of any
    topic, unless it is one of the `empty`: that is told.
    """
    known: set[str] = set()
    for replica in replicas:
        here = known_topics(replica)
        known |= here
        if asked and not here and replica not in empty:
            logger.warning(
                "%s: neither queues nor config/topics.json say which topics its log holds, so a"
                " topic that it does not hold gives no rows and no error",
                replica.root,
            )
            return
    missing = sorted(set(asked or ()) - known)
    if missing:
        there = ", ".join(sorted(known)[:20]) or "none, nothing is stored yet"
        raise OptionError(
            f"option topics: no store of the path has {', '.join(missing)}; topics there:"
            f" {there}{' ...' if len(known) > 20 else ''}. For records of a topic that was deleted"
            " leave the option out and filter by the column topic",
            Condition.UNKNOWN_TOPIC,
        )


def known_topics(replica: Replica) -> set[str]:
    """Topics of a store: those of its table, and those that it has queues of."""
    found = set(read_topic_table(replica.root) or ())
    for kind in ("consumequeue", "batchconsumequeue"):
        try:
            entries = os.scandir(os.path.join(replica.root, kind))
        except (FileNotFoundError, NotADirectoryError):
            continue
        found |= {entry.name for entry in entries if entry.is_dir()}
    return found


def log_files(replica: Replica) -> tuple[SegmentFile, ...]:
    """Files of a replica's log by their first offset. Raises `NotAStore`."""
    directory = os.path.join(replica.root, "commitlog")
    if not os.path.isdir(directory):
        what = "no commitlog is in it" if os.path.isdir(replica.root) else "no such directory"
        raise NotAStore(f"{replica.root} is no store directory: {what}")
    return tuple(file for file in list_segments(directory).segments if file.size)


def durable_offset(replica: Replica) -> int:
    """Up to where the log is known to have been on disk, from rocketbed's own marks; else -1.

    RocketMQ leaves no such mark.
    """
    abort = os.path.join(replica.root, "abort")
    marks = read_marks(
        _content(replica, CKPT_NAME),
        _content(replica, FLUSHED_NAME),
        abort_lines=_content(replica, "abort").decode(errors="replace").splitlines()
        if os.path.exists(abort)
        else None,
        checkpoint=_content(replica, "checkpoint"),
    )
    if marks is None or not marks.trusted or marks.flushed_offset is None:
        return UNKNOWN
    return marks.flushed_offset


def _content(replica: Replica, name: str) -> bytes:
    try:
        with open(os.path.join(replica.root, name), "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def _check_apart(replicas: Sequence[Replica]) -> None:
    """Raises `OptionError` where two of the directories have one log: its rows would be double."""
    logs: dict[tuple[int, int], Replica] = {}
    for replica in replicas:
        try:
            found = os.stat(os.path.join(replica.root, "commitlog"))
        except OSError:
            continue  # told when it is read
        other = logs.setdefault((found.st_dev, found.st_ino), replica)
        if other is not replica:
            raise OptionError(f"path: {other.root} and {replica.root} are one store: give it once")


def _pieces(text: str) -> list[str]:
    """The directories of a path, with their names; a directory may have a comma in its own."""
    pieces = text.split(",")
    found: list[str] = []
    while pieces:
        counts = range(len(pieces), 1, -1)
        count = next((count for count in counts if _is_there(",".join(pieces[:count]))), 1)
        found.append(",".join(pieces[:count]).strip())
        del pieces[:count]
    return [piece for piece in found if piece]


def _is_there(piece: str) -> bool:
    name, _, root = piece.strip().partition("=")
    return os.path.isdir(piece.strip()) or ("," not in name and os.path.isdir(root))


def _unnamed(roots: Sequence[str], taken: Set[str]) -> dict[str, Replica]:
    """Directories without names, called so that no two are one broker, and none is in `taken`."""
    parts = {root: os.path.abspath(root).strip("/").split("/") for root in roots}
    most = max(map(len, parts.values()), default=1)
    names: dict[str, str] = {}
    for depth in range(1, most + 1):
        names = {root: "-".join(one[-depth:]) for root, one in parts.items()}
        different = {tuple(one[-depth:]) for one in parts.values()}
        if len(different) == len(parts) and taken.isdisjoint(names.values()):
            break
    for root, name in names.items():
        if name in taken:
            raise OptionError(
                f"path: {root} would be called {name}, as a broker that is named there: "
                f"name it too, broker/replica={root}"
            )
    return {root: Replica(names[root], names[root], root) for root in roots}
