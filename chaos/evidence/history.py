r"""History of a run: one row for each attempt, as its client saw it.

The file is written during the run and must show whether it is complete, since a check on a partial
history finds ghosts or overlooks losses. So it is a sequence of blocks, each with its length and
CRC-32C, and the last one has the number of rows. Columns, and the promises of outcomes: chaos.md
2.1. Spark's `verify` reads the same file.

Layout: 8 bytes `RBHIST2\\n`, then blocks: length u32, CRC-32C u32 (big-endian), payload. A payload
is a msgpack array of entries: a row is an array of 19 numbers in the order of `Row`; a name is
`["name", kind, id, text]`; an event is `["event", time_ns, function, node, kind, fields]`; the last
entry of the last block is `["end", rows, events]`.
"""

import enum
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import crcmod.predefined
import msgpack

from rocketbed.host.closing import Closing

MAGIC = b"RBHIST2\n"
_BLOCK = struct.Struct(">II")
_ENTRIES_MAX = 1024
_BLOCK_SIZE_MAX = 64 << 20
_crc32c: Callable[[bytes], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

UNKNOWN = -1
"""Value of an unknown offset or time in a row."""
OWN_ATTEMPTS = -1
"""`attempt` of a client that retries on its own: its messages may be stored several times."""
FINAL_READER = 1_000_000
"""Process number of the reader that reads everything at the end."""


class Function(enum.IntEnum):
    """Kind of an attempt (column `f`), or of an event."""

    SEND = 1
    SEND_ONEWAY = 2
    PULL = 3
    """`queue_offset` is the requested offset, `physical_offset` the next offset in the answer,
    `value` and `operation` the queue's max and min offset in the answer."""
    GOT = 4
    """A message of a pull; `operation` is the number of the pull's row, `physical_offset` the
    offset that the pull requested."""
    DELIVER = 5
    """A message delivered to a member of a group; `operation` is the group's number."""
    ACK = 6
    COMMIT_OFFSET = 7
    """A group's position. `queue_offset` is the next message, known even without an answer;
    `operation` is the group's number."""
    RESET_OFFSET = 8
    READ_OFFSET = 9
    """A group's position as a broker reported it; the columns of `COMMIT_OFFSET`."""
    QUERY_KEY = 11
    TELL = 12
    """A message to listeners; `operation` is its delay level."""
    HEAR = 13
    """A call of a listener's function: OK if it accepted the message, FAIL if it refused it.
    `operation` is the group's number, `attempt` the number of earlier deliveries to the group,
    `physical_offset` the start of the record."""
    DEAD = 14
    """A dead letter found at the end; `operation` is the group's number."""
    SEARCH_TIME = 15
    """Offset of a store time: `value` is the time (wall clock, ms), `queue_offset` the answer."""
    BOUNDS = 16
    """A queue's `value` max and `operation` min offset, as `node` reports them."""
    NEMESIS = 32
    NODE = 33


class Outcome(enum.IntEnum):
    """Effect that the client may rely on (column `out`)."""

    OK = 0
    """The effect is promised; the only outcome that obliges the store."""
    WEAK = 1
    """Stored somewhere, but the promise was not reached (codes 10, 11, 12)."""
    FAIL = 2
    """Provably no effect; the only outcome that forbids one."""
    INFO = 3
    """Unknown: a timeout, a lost connection, code 14 after the append."""


class Row(NamedTuple):
    """An attempt. Times in nanoseconds of one clock, offsets in bytes or messages, -1 if
    unknown."""

    number: int
    process: int
    function: int
    topic: int
    """Id of the topic's name, like `node` below; 0 for none."""
    queue: int
    value: int
    """Unique for each attempt; part of the body."""
    operation: int
    """Number that all attempts of one send share."""
    attempt: int
    """Counted from 0, or `OWN_ATTEMPTS`."""
    invoked_ns: int
    returned_ns: int
    outcome: int
    status: int
    """RocketMQ's response code, or -1."""
    queue_offset: int
    physical_offset: int
    length: int
    """Length of the body, bytes."""
    epoch: int
    node: int
    body_crc: int
    """RocketMQ's BODYCRC of the body that was sent or received."""
    label_crc: int
    """Checksum of tag, keys and properties that were sent or received (`workload.label_crc`)."""


_NOT_RETURNED = UNKNOWN, Outcome.INFO, UNKNOWN, UNKNOWN, UNKNOWN
"""Columns `returned_ns` to `physical_offset` of a row that never returned."""


class Event(NamedTuple):
    """Something that happened to a node or was done to it."""

    time_ns: int
    function: int
    node: str
    kind: str
    """Kind, such as `kill`, `start`, `ready`, `stop`, `recovered`, `flush`."""
    fields: dict[str, Any]


class Columns:
    """Rows column by column, in arrays that NumPy can use without a copy."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in Row._fields}

    def __len__(self) -> int:
        return len(self._columns["number"])

    def __getitem__(self, name: str) -> "array[int]":
        return self._columns[name]

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Add rows, each as the numbers of a `Row`. Raises `ValueError` for a wrong length."""
        for column, values in zip(self._columns.values(), zip(*rows, strict=True), strict=True):
            column.extend(values)

    def row(self, number: int) -> Row:
        """Return a row by its number, counted from 0."""
        return Row(*(column[number] for column in self._columns.values()))

    def rows(self) -> Iterator[Row]:
        """Yield all rows in the order they were written, which is that of their return."""
        return map(Row._make, zip(*self._columns.values(), strict=True))


@dataclass(slots=True)
class History:
    """A history that was read. With `cut` set it is incomplete and proves little."""

    columns: Columns = field(default_factory=Columns)
    events: list[Event] = field(default_factory=list)
    topics: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    cut: str | None = None
    """Reason why the file is incomplete."""

    def topic(self, row: Row) -> str:
        return self.topics.get(row.topic, "")


class Attempt:
    """An attempt that has begun; exactly one row will report it."""

    __slots__ = ("_row", "_writer")

    def __init__(self, writer: "HistoryWriter", row: Row) -> None:
        self._writer = writer
        self._row = row

    @property
    def row(self) -> Row:
        return self._row

    def finish(
        self,
        outcome: Outcome,
        *,
        status: int = UNKNOWN,
        queue: int | None = None,
        queue_offset: int = UNKNOWN,
        physical_offset: int = UNKNOWN,
        value: int | None = None,
        node: str | None = None,
    ) -> None:
        """Record that the attempt returned now. Raises `KeyError` if it had returned before."""
        writer, row = self._writer, self._row
        if value is not None:
            row = row._replace(value=value)
        writer.forget(row.number)
        queue = row.queue if queue is None else queue
        place = row.node if node is None else writer.node_id(node)
        result = writer.now_ns(), outcome, status, queue_offset, physical_offset
        unchanged = row.length, row.epoch, place, *row[-2:]
        writer.write(Row(*row[:4], queue, *row[5:9], *result, *unchanged))


class HistoryWriter(Closing):
    """Appends to a history file; for one process and one thread.

    Use as a context manager. Attempts that have not returned at its end are written as unknown
    (`Outcome.INFO`), as they may still take effect.
    """

    def __init__(self, path: str | os.PathLike[str], now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self._file = open(path, "xb")  # noqa: SIM115 (closed by `close`)
        self._file.write(MAGIC)
        self._entries: list[Any] = []
        self._open: dict[int, Attempt] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._next_number = self._rows = self._events = 0
        self.listener: Callable[[Event | Row], None] | None = None
        """Called with each event and each row as it is written."""

    def begin(
        self,
        function: Function,
        *,
        process: int,
        topic: str = "",
        queue: int = UNKNOWN,
        value: int = UNKNOWN,
        operation: int = UNKNOWN,
        attempt: int = 0,
        queue_offset: int = UNKNOWN,
        physical_offset: int = UNKNOWN,
        length: int = 0,
        body_crc: int = UNKNOWN,
        label_crc: int = UNKNOWN,
        node: str = "",
    ) -> Attempt:
        """Begin an attempt now."""
        number = self._next_number
        self._next_number += 1
        invoked = number, process, function, self.topic_id(topic), queue, value, operation
        details = length, UNKNOWN, self.node_id(node), body_crc, label_crc
        row = Row(*invoked, attempt, self.now_ns(), *_NOT_RETURNED, *details)
        row = row._replace(queue_offset=queue_offset, physical_offset=physical_offset)
        started = self._open[number] = Attempt(self, row)
        return started

    def note(
        self,
        function: Function,
        *,
        process: int,
        topic: str,
        queue: int,
        value: int,
        operation: int,
        queue_offset: int,
        physical_offset: int,
        length: int,
        node: str,
        body_crc: int,
        label_crc: int,
    ) -> None:
        """Record an attempt that began and returned now: a message that a client received."""
        number, now_ns = self._next_number, self.now_ns()
        self._next_number += 1
        topic_id, node_id = self.topic_id(topic), self.node_id(node)
        invoked = number, process, function, topic_id, queue, value, operation, 0, now_ns
        returned = now_ns, Outcome.OK, UNKNOWN, queue_offset, physical_offset
        self.write(Row(*invoked, *returned, length, UNKNOWN, node_id, body_crc, label_crc))

    def event(
        self, function: Function, node: str, kind: str, fields: Mapping[str, Any] | None = None
    ) -> None:
        self._events += 1
        event = Event(self.now_ns(), int(function), node, kind, dict(fields or {}))
        self._add(["event", *event])
        if self.listener is not None:
            self.listener(event)

    def write(self, row: Row) -> None:
        self._rows += 1
        self._add(row)
        if self.listener is not None:
            self.listener(row)

    def forget(self, number: int) -> None:
        """Drop an attempt that has its row. Raises `KeyError` if it had one before."""
        del self._open[number]

    def topic_id(self, name: str) -> int:
        return self._name_id("topic", name)

    def node_id(self, name: str) -> int:
        return self._name_id("node", name)

    def flush(self) -> None:
        """Hand buffered entries to the operating system."""
        if self._entries:
            payload: bytes = msgpack.packb(self._entries)
            self._file.write(_BLOCK.pack(len(payload), _crc32c(payload)) + payload)
            self._entries.clear()
        self._file.flush()

    def close(self) -> None:
        """Write unfinished attempts as unknown, and the end mark. A second call does nothing."""
        if self._file.closed:
            return
        for attempt in list(self._open.values()):
            self.write(attempt.row)
        self._open.clear()
        self._add(["end", self._rows, self._events])
        self.flush()
        self._file.close()

    def _name_id(self, kind: str, text: str) -> int:
        if not text:
            return 0
        number = self._names.get((kind, text))
        if number is None:
            number = self._names[kind, text] = len(self._names) + 1
            self._add(["name", kind, number, text])
        return number

    def _add(self, entry: Any) -> None:
        self._entries.append(entry)
        if len(self._entries) >= _ENTRIES_MAX:
            self.flush()


def save_history(path: str | os.PathLike[str], history: History, rows: Iterable[Row]) -> None:
    """Write a history again, with these rows in place of its own. Raises `OSError`."""
    clock = [0]
    with HistoryWriter(path, lambda: clock[0]) as writer:
        kinds = (("topic", history.topics), ("node", history.nodes))
        names = {number: (kind, text) for kind, part in kinds for number, text in part.items()}
        for number in sorted(names):
            writer._name_id(*names[number])
        for row in rows:
            writer.write(row)
        for event in history.events:
            clock[0] = event.time_ns
            writer.event(Function(event.function), event.node, event.kind, event.fields)


def read_history(path: str | os.PathLike[str]) -> History:
    """Read a history file. A damaged or unfinished one is read as far as possible (`cut`).

    Raises `OSError` if it cannot be opened.
    """
    history = History()
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            history.cut = "not a history file: wrong magic bytes"
            return history
        ended = False
        while not ended:
            payload = _read_block(file.read, history)
            if payload is None:
                return history
            ended = _add_block(history, payload)
        if file.read(1):
            history.cut = "bytes follow the end mark"
    return history


def _read_block(read: Callable[[int], bytes], history: History) -> bytes | None:
    head = read(_BLOCK.size)
    if len(head) < _BLOCK.size:
        history.cut = "the file has no end mark: the run did not finish"
        return None
    size, crc = _BLOCK.unpack(head)
    payload = read(size) if size <= _BLOCK_SIZE_MAX else b""
    if len(payload) < size:
        history.cut = f"the file ends within a block of {size} bytes"
        return None
    if _crc32c(payload) != crc:
        history.cut = f"the CRC of block behind row {len(history.columns)} is wrong"
        return None
    return payload


def _add_block(history: History, payload: bytes) -> bool:
    """Add the entries of a block to the history; True if it has the end mark."""
    entries = msgpack.unpackb(payload)
    rows = [entry for entry in entries if type(entry[0]) is int]
    if rows:
        history.columns.extend(rows)
    if len(rows) == len(entries):
        return False
    for entry in entries:
        kind = entry[0]
        if isinstance(kind, int):
            continue
        if kind == "name":
            names = history.topics if entry[1] == "topic" else history.nodes
            names[entry[2]] = entry[3]
        elif kind == "event":
            history.events.append(Event(*entry[1:]))
        else:
            if (entry[1], entry[2]) != (len(history.columns), len(history.events)):
                history.cut = f"{len(history.columns)} rows, the end mark counts {entry[1]}"
            return True
    return False
