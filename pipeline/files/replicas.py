"""Read the facts of a store directory: the files of its log, its marks, its topics."""

import logging
import os
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rocketbed.inspect.directory import first_json, topic_table
from rocketbed.inspect.files import OFFSET_END, SegmentFile
from rocketbed.inspect.marks import CKPT_NAME, FLUSHED_NAME, read_marks
from rocketbed.pipeline.errors import Condition, PipelineError
from rocketbed.pipeline.files.segments import WINDOW, Segment
from rocketbed.pipeline.files.storage import LOCAL, Storage
from rocketbed.pipeline.option_table import OptionError

logger = logging.getLogger("rocketbed.pipeline")

UNKNOWN: Final = -1
"""Offset of a missing mark."""
TABLE_MAX: Final = 256 << 20
"""Maximum bytes read of a topic table."""


class NotAStore(PipelineError):
    """A path of the option `path` is no store directory."""

    condition = Condition.NOT_A_STORE


class Replica(NamedTuple):
    """Store directory: its broker group, its name in the group, and its root."""

    broker: str
    name: str
    root: str
    storage: Storage = LOCAL

    def segment(self, file: SegmentFile, *, window: int = WINDOW) -> Segment:
        """Open a file of the log. Raises `DataLost`."""
        return Segment(file.path, file.start, file.size, window=window, storage=self.storage)


def check_topics(
    replicas: Sequence[Replica],
    names: Iterable[str] | None,
    pattern: re.Pattern[str] | None = None,
    empty: Container[Replica] = (),
) -> None:
    """Raise `OptionError` for a topic, or a pattern of topics, that no store knows.

    A log with neither queues nor a topic table, for instance a copy, may hold records of any topic,
    unless it is in `empty`: a warning is logged.
    """
    stored: set[str] = set()
    for replica in replicas:
        own = known_topics(replica)
        stored |= own
        if (names or pattern) and not own and replica not in empty:
            logger.warning(
                "%s: neither queues nor config/topics.json say which topics its log holds, so a"
                " topic that it does not hold gives no rows and no error",
                replica.root,
            )
            return
    missing = sorted(set(names or ()) - stored)
    if pattern is not None and not any(map(pattern.fullmatch, stored)):
        missing = [f"a topic that matches {pattern.pattern}"]
    if missing:
        option = "topics" if names else "topicsPattern"
        available = ", ".join(sorted(stored)[:20]) or "none, nothing is stored yet"
        raise OptionError(
            f"option {option}: no store of the path has {', '.join(missing)}; topics there:"
            f" {available}{' ...' if len(stored) > 20 else ''}. For records of a topic that was"
            " deleted leave the option out and filter by the column topic",
            Condition.UNKNOWN_TOPIC,
        )


def known_topics(replica: Replica) -> set[str]:
    """Topics of a store, from its topic table and its queues."""
    texts = (
        _content(replica, f"config/{name}", size=TABLE_MAX).decode(errors="replace")
        for name in ("topics.json", "topics.json.bak")
    )
    topics = set(topic_table(first_json(texts)) or ())
    for kind in ("consumequeue", "batchconsumequeue"):
        topics |= set(replica.storage.folders(os.path.join(replica.root, kind)))
    return topics


def log_files(replica: Replica) -> tuple[SegmentFile, ...]:
    """Files of a replica's log by their first offset, none longer than to the next one's.

    Raises `NotAStore`.
    """
    files = [file for file in listed_files(replica) if file.size]
    ends = [file.start for file in files[1:]]
    return tuple(
        file if file.end <= end else replace(file, size=end - file.start)
        for file, end in zip(files, [*ends, OFFSET_END], strict=False)
    )


def listed_files(replica: Replica) -> tuple[SegmentFile, ...]:
    """Files of a replica's log as listed, including empty ones. Raises `NotAStore`."""
    directory = os.path.join(replica.root, "commitlog")
    storage = replica.storage
    if not storage.is_dir(directory):
        problem = "no commitlog is in it" if storage.is_dir(replica.root) else "no such directory"
        raise NotAStore(f"{replica.root} is no store directory: {problem}")
    return storage.segments(directory).segments


def first_offset(replica: Replica) -> int | None:
    """Physical offset at which a replica's log begins, None without one. Raises `NotAStore`.

    An empty file before others is lost data: expiry deletes whole files.
    """
    files = listed_files(replica)
    return files[0].start if any(file.size for file in files) else None


def durable_offset(replica: Replica) -> int:
    """Offset up to which the log is known to have been on disk, from rocketbed's marks; else -1.

    RocketMQ leaves no such mark.
    """
    names = {entry.name for entry in replica.storage.entries(replica.root)}
    marks = read_marks(
        _content(replica, CKPT_NAME, names),
        _content(replica, FLUSHED_NAME, names),
        abort_lines=_content(replica, "abort", names).decode(errors="replace").splitlines()
        if "abort" in names
        else None,
        checkpoint=_content(replica, "checkpoint", names),
    )
    if marks is None or not marks.trusted or marks.flushed_offset is None:
        return UNKNOWN
    return marks.flushed_offset


def closed_ms(replica: Replica) -> int | None:
    """Store time of the last record on disk when a broker closed the store; None if it was not
    closed, or was opened again since."""
    names = {entry.name for entry in replica.storage.entries(replica.root)}
    if "abort" in names or "checkpoint" not in names:
        return None
    return int.from_bytes(_content(replica, "checkpoint")[:8], "big", signed=True)


def _content(
    replica: Replica, name: str, names: Container[str] | None = None, *, size: int = 1 << 20
) -> bytes:
    if names is not None and name not in names:
        return b""
    try:
        return replica.storage.content(os.path.join(replica.root, name), size)
    except FileNotFoundError:
        return b""
    except OSError:
        if not replica.storage.is_local:  # a refusal of a server is no fact about the store
            raise
        return b""
