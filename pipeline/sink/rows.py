"""Conversion of Spark rows to messages.

Columns: `topic string` (or the option `topic`), `body binary` (or string, sent as UTF-8), and any
of `tags string`, `keys array<string>` (or a string of words), `properties map<string,string>` (or a
stored property string), `flag int`, `queue_id int`, `broker string`, `delay_level int`. The case of
names does not matter, as in Spark. Further columns of the source's schema are set by a broker; they
are ignored, so that rows that were read can be written. Such rows have their old property string:
its KEYS and TAGS are used if the row has no columns for them, and its UNIQ_KEY stays readable as
`RB_ORIGIN`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocketbed.client.errors import BadMessage
from rocketbed.client.messages import Message
from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.schema import RECORDS
from rocketbed.pipeline.sink.keys import ORIGIN, TRANSACTION, TaskKey
from rocketbed.pipeline.sink.options import SinkError, SinkOptions
from rocketbed.wire.message import COMPRESSED, INNER_BATCH
from rocketbed.wire.properties import (
    CLUSTER,
    CRC32,
    DELAY,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    NAME_END,
    PAIR_END,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    split_keys,
)

if TYPE_CHECKING:
    import pyarrow

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>", "string"),
    "flag": ("int", "smallint", "tinyint"),
    "queue_id": ("int", "smallint", "tinyint"),
    "broker": ("string",),
    "delay_level": ("int", "smallint", "tinyint"),
}
"""Columns that are written, each with the Spark types it may have."""
SYS_FLAG, LENGTH = "sys_flag", "body_length"
"""Columns that are not written, but reveal records of several messages and compressed bodies."""
SET_BY_BROKER: Final = frozenset(RECORDS) - frozenset(COLUMNS)
"""Columns of rows from the source that are ignored in writing."""
OTHER_KINDS: Final = frozenset(
    (
        DELAY,
        "TRAN_MSG",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DEL_UNIQKEY",
    )
)
"""Properties that make a broker treat a message as a half message, or deliver it later."""
NOT_COPIED: Final = OTHER_KINDS.union(
    (
        KEYS,
        TAGS,
        WAIT,
        UNIQUE_KEY,
        CLUSTER,
        CRC32,
        INNER_BASE,
        TRANSACTION,
        "MSG_REGION",
        "TRACE_ON",
        "REAL_TOPIC",
        "REAL_QID",
        "RETRY_TOPIC",
        "PGROUP",
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "__transactionId__",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL",
    )
)
"""Properties that belong to the stored message only, not to its copy (RocketMQ: `MessageConst`)."""

_SEVERAL: Final = (
    "it is a record of a batch queue with several messages, which would become one: read with the"
    " options inner=unpack and decompress=true, and leave out rows without a body: they are damaged"
)
_NO_BODY: Final = (
    "the body must be non-empty bytes, and is null, as that of a damaged record: leave the row out"
)
_EMPTY: Final = "the body must be non-empty bytes: leave out such rows, by where length(body) > 0"
_STILL_PACKED: Final = (
    "its body is still packed, which a reader could not tell from the message: read with the option"
    " decompress=true"
)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message and its destination."""

    row: int
    """Number of the row in its partition."""
    message: Message
    queue_id: int | None
    """None: any queue."""
    broker: str | None
    """None: any broker."""


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns (name -> Spark type) of rows to be written. Raises `SinkError`."""
    allowed = ", ".join(f"{name} {' or '.join(types)}" for name, types in COLUMNS.items())
    names: set[str] = set()
    for column, kind in columns.items():
        name = column.lower()
        if name in names:
            raise _illegal(f"column {column} is there twice, in another case: drop one of them")
        names.add(name)
        if name in COLUMNS:
            if kind not in COLUMNS[name]:
                raise _illegal(
                    f"column {name} is {kind}, not {' or '.join(COLUMNS[name])}: cast it"
                )
        elif name not in SET_BY_BROKER:
            raise _illegal(f"column {name} is not part of a message; allowed columns: {allowed}")
    if "headers" in names and "properties" not in names:
        raise _illegal(
            "column headers is not written: read the column properties too, which is, or drop it"
        )
    if "body" not in names:
        raise _illegal(f"column body is required; allowed columns: {allowed}")
    if "topic" not in names and not options.topic:
        raise _illegal("no destination: add a column topic or set the option topic")
    if "broker" in names and "queue_id" not in names:
        raise _illegal("column broker requires column queue_id")


def _illegal(text: str) -> SinkError:
    return SinkError(text, Condition.ILLEGAL_SCHEMA)


def cells_of(batch: "pyarrow.RecordBatch") -> dict[str, list[Any]]:
    """Return the columns of a batch that are used, by lower-case name."""
    return {
        name.lower(): column.to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name.lower() in (*COLUMNS, SYS_FLAG, LENGTH)
    }


def outgoing(
    columns: Mapping[str, list[Any]], *, first_row: int, key: TaskKey, options: SinkOptions
) -> Iterator[Outgoing]:
    """Yield the messages of rows, which are passed by column.

    `first_row` is the number of the first row in its partition. Raises `SinkError` for a row that
    cannot become a message.
    """
    names = [name for name in (*COLUMNS, SYS_FLAG, LENGTH) if name in columns]
    fixed = {TRANSACTION: key.job} if options.is_exactly_once else {}
    for row, values in enumerate(
        zip(*(columns[name] for name in names), strict=True), start=first_row
    ):
        cells = dict(zip(names, values, strict=True))
        try:
            yield _outgoing(cells, row, key, options, fixed)
        except (BadMessage, UnicodeError) as exc:
            where = f"row {row} of partition {key.partition}"
            raise SinkError(f"{where}: {exc}", Condition.ILLEGAL_ROW) from exc


def _outgoing(
    cells: Mapping[str, Any], row: int, key: TaskKey, options: SinkOptions, fixed: dict[str, str]
) -> Outgoing:
    if cells["body"] is None:
        raise BadMessage(_NO_BODY)
    if not cells["body"]:
        raise BadMessage(_EMPTY)
    sys_flag = cells.get(SYS_FLAG)
    if isinstance(sys_flag, int) and sys_flag & INNER_BATCH:
        raise BadMessage(_SEVERAL)
    properties, tag, keys = _properties(cells.get("properties"))
    if "tags" in cells:
        tag = cells["tags"]
    if "keys" in cells:
        keys = _words(cells["keys"] or ())
    if (cells.get("queue_id") or 0) < 0:
        raise BadMessage(f"queue_id {cells['queue_id']} is below 0: no topic has such a queue")
    if cells.get("broker") and cells["queue_id"] is None:
        raise BadMessage(f"broker {cells['broker']} without a queue_id: give both, or neither")
    level = cells.get("delay_level") or 0
    if level and options.is_exactly_once:
        raise BadMessage(
            "a delayed message cannot be exactly once: its place in the queue is not known "
            "when it is sent; delivery=at-least-once"
        )
    body = cells["body"].encode() if isinstance(cells["body"], str) else cells["body"]
    # A body that the reader unpacked keeps its flag, and may itself look compressed; its length
    # differs from the stored length then.
    is_stored = bool(body) and cells.get(LENGTH) in (None, len(body))
    if isinstance(sys_flag, int) and sys_flag & COMPRESSED and is_stored and _opens(body, sys_flag):
        raise BadMessage(_STILL_PACKED)
    message = Message(
        cells.get("topic") or options.topic,
        body,
        tag=tag or None,
        keys=keys,
        properties=properties | fixed,
        flag=cells.get("flag") or 0,
        delay_level=level,
        message_id=key.message_id(row),
    )
    message.check()
    return Outgoing(row, message, cells.get("queue_id"), cells.get("broker"))


def _opens(body: bytes, sys_flag: int) -> bool:
    from rocketbed.pipeline.files.derived import unpack

    return unpack(body, sys_flag) is not None


def _properties(cell: Any) -> tuple[dict[str, str], str | None, Sequence[str]]:
    """Return properties, tag and keys of a cell: the user's map, or a stored property string."""
    if cell is None:
        return {}, None, ()
    if not isinstance(cell, str):
        pairs = dict(cell)
        if wrong := sorted(name for name, value in pairs.items() if value is None):
            raise BadMessage(f"property {wrong[0]} has no value")
        if TRANSACTION in pairs:
            raise BadMessage(f"property {TRANSACTION} is set by exactly-once jobs only")
        _check_single(pairs)
        if wrong := sorted(OTHER_KINDS.intersection(pairs)):
            raise BadMessage(
                f"property {wrong[0]} is of half messages and delayed ones, which are not written"
                " so: a column delay_level delays a message"
            )
        return pairs, None, ()
    if odd := [pair for pair in cell.split(PAIR_END) if pair and pair.find(NAME_END) < 1]:
        raise BadMessage(
            f"properties has {odd[0]!r}, which is no name 0x01 value: give a map<string,string>"
        )
    stored = decode_properties(cell)
    _check_single(stored)
    copied = {name: value for name, value in stored.items() if name not in NOT_COPIED}
    if UNIQUE_KEY in stored:
        copied.setdefault(ORIGIN, stored[UNIQUE_KEY])
    return copied, stored.get(TAGS), list(split_keys(stored.get(KEYS)))


def _check_single(properties: Mapping[str, str]) -> None:
    """Raise `BadMessage` for the properties of a record with several messages."""
    if INNER_NUM in properties:
        raise BadMessage(_SEVERAL)


def _words(cell: Any) -> tuple[str, ...]:
    return split_keys(cell) if isinstance(cell, str) else tuple(cell)
