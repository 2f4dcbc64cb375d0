"""What the checks look at: the history, and the directories as the independent reader sees them.

Only messages of the workload's topics are kept (their writer, place and checksum, no bodies), so a
cluster that was started on foreign data can be checked too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chaos.history import Function, History, Outcome, Row
from chaos.workload import Writer, body_crc, decode_body
from rocketbed.inspect import (
    LogEnd,
    Record,
    Report,
    Scanned,
    Settings,
    StoreDirectory,
    check_store,
    open_directory,
)
from rocketbed.inspect.bodies import unpack_body

SENDS = (Function.SEND, Function.SEND_ONEWAY)


class Place(NamedTuple):
    """Where a message stands: in messages, and in bytes of the log."""

    topic: str
    queue: int
    offset: int
    physical: int


class Stored(NamedTuple):
    """One message of the workload's topics in a log."""

    writer: Writer | None
    """None: the body names none, or is damaged."""
    place: Place
    size: int
    body_crc: int


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """One node's directory, read to its end."""

    name: str
    directory: StoreDirectory
    report: Report
    stored: tuple[Stored, ...]
    """Messages of the workload in the order of the log."""
    log_min: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the checks of one run look at."""

    history: History
    nodes: tuple[NodeEvidence, ...]
    leader: str
    """The node whose log is the final one."""

    @property
    def final(self) -> NodeEvidence | None:
        """The leader's evidence; None when its directory is not among the nodes'."""
        return next((node for node in self.nodes if node.name == self.leader), None)

    def sends(self, *outcomes: Outcome) -> list[Row]:
        """Rows of sends with one of these outcomes."""
        return [
            row for row in self.history.rows() if row.function in SENDS and row.outcome in outcomes
        ]


def gather(
    history: History,
    directories: Mapping[str, str],
    leader: str,
    settings: Settings | None = None,
) -> Evidence:
    """Read and check every directory. Raises `NotAStore` for one that is none."""
    topics = {history.topic(row).encode() for row in history.rows() if row.function in SENDS}
    nodes = tuple(
        _read_node(name, open_directory(path, settings), topics)
        for name, path in sorted(directories.items())
    )
    return Evidence(history, nodes, leader)


def _read_node(name: str, directory: StoreDirectory, topics: set[bytes]) -> NodeEvidence:
    stored: list[Stored] = []
    end = 0
    for item in directory.log.scan():
        if isinstance(item, LogEnd):
            end = item.offset
        elif isinstance(item, Scanned) and item.topic in topics:
            record = directory.log.record_at(item.offset, item.size)
            if isinstance(record, Record):
                stored.append(_stored(record))
    report = check_store(directory)
    return NodeEvidence(name, directory, report, tuple(stored), directory.log.min_offset, end)


def _stored(record: Record) -> Stored:
    """A message as its consumer would get it: the body unpacked, if the producer packed it."""
    place = Place(record.topic, record.queue_id, record.queue_offset, record.offset)
    body = unpack_body(record.body, record.sys_flag) or b""
    return Stored(decode_body(body), place, record.size, body_crc(body))
