"""The tables that the data source offers: names, types, units.

A user's schema is the projection: Spark does not tell a Python source which columns a query needs,
so every reader here decodes exactly the columns of the schema that it is given, in any order, and
touches nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow

from rocketbed.pipeline.errors import Condition, PipelineError


class SchemaError(PipelineError):
    """A schema asks for a column that the view does not have, or for another type."""

    condition = Condition.ILLEGAL_SCHEMA
    exit_code = 64


class Field(NamedTuple):
    """Column: its type in Spark's DDL, and its meaning."""

    type: str
    meaning: str


CORRUPT: Final = "_corrupt"
CORRUPT_TYPE: Final = "struct<offset:bigint,reason:string,bytes:binary>"

RECORDS: Final[Mapping[str, Field]] = {
    "broker": Field("string", "name of the broker group, from the option path"),
    "replica": Field("string", "name of the replica, from the option path"),
    "topic": Field("string", "topic as stored (%RETRY%, SCHEDULE_TOPIC_XXXX... included)"),
    "queue_id": Field("int", "queue of the topic"),
    "queue_offset": Field("bigint", "place in the queue, counted in messages"),
    "physical_offset": Field("bigint", "first byte of the record, from the start of the log"),
    "size": Field(
        "int",
        "bytes of the record, null for all but the first message in it; of a corrupt range, its"
        " bytes up to 2^31-1",
    ),
    "flag": Field("int", "FLAG of the sender"),
    "sys_flag": Field("int", "SYSFLAG: compression, transaction, IPv6 bits as stored"),
    "born_timestamp": Field("timestamp", "sender's clock, UTC, whole milliseconds"),
    "born_host": Field("string", "sender's address, ip:port"),
    "store_timestamp": Field("timestamp", "clock of the master that stored it, UTC, milliseconds"),
    "store_host": Field("string", "address of that master, ip:port"),
    "reconsume_times": Field("int", "how often the message was handed back"),
    "prepared_transaction_offset": Field("bigint", "physical offset of the prepared record"),
    "body_crc": Field("int", "CRC-32 of the stored body, 31 bits"),
    "crc_ok": Field("boolean", "whether the stored checksums hold; null when verifyCrc is off"),
    "tags": Field("string", "property TAGS"),
    "keys": Field("array<string>", "property KEYS, split at blanks"),
    "uniq_key": Field("string", "property UNIQ_KEY, the sender's message id"),
    "properties": Field("string", "all properties as stored: name 0x01 value 0x02 ..."),
    "headers": Field("map<string,string>", "the same by name, a property without a value left out"),
    "body": Field("binary", "body, inflated unless decompress is off"),
    "body_length": Field("int", "bytes of the body as stored"),
    "segment": Field("bigint", "first offset of the file that holds the record"),
    CORRUPT: Field(CORRUPT_TYPE, "where, why, and the first 4 KiB of bytes that are no record"),
}
"""View `records`. Layout: store.md 2 (RocketMQ: `MessageExtEncoder`). Every column may be null: of
a corrupt range only its place is known."""

QUEUES: Final[Mapping[str, Field]] = {
    "broker": RECORDS["broker"],
    "replica": RECORDS["replica"],
    "topic": Field("string", "topic, from the directory"),
    "queue_id": Field("int", "queue, from the directory"),
    "queue_offset": Field("bigint", "slot; of a batch queue the first message's offset"),
    "physical_offset": Field("bigint", "first byte of the record, from the start of the log"),
    "size": Field("int", "bytes of the record"),
    "tag_code": Field("bigint", "hash of the tag, or time of delivery of a delayed message"),
    "messages": Field("int", "messages in the record: 1 but for batch queues"),
    "kind": Field("string", "simple or batch"),
}
"""View `consumequeue`: one row a unit that is not empty (store.md 3). Pre-blank units, which only
fill slots, are left out."""

INDEX: Final[Mapping[str, Field]] = {
    "broker": RECORDS["broker"],
    "replica": RECORDS["replica"],
    "file": Field("string", "name of the index file"),
    "number": Field("int", "number of the entry in its file, from 1"),
    "key_hash": Field("int", "absolute Java hash of topic#key"),
    "physical_offset": Field("bigint", "first byte of the record"),
    "store_timestamp": Field("timestamp", "begin of the file plus the entry's seconds, UTC"),
    "seconds": Field("int", "seconds since the file's begin"),
    "previous": Field("int", "number of the previous entry of the same slot, 0 for none"),
}
"""View `index`: one row an entry (store.md 4)."""

BLOCKS: Final[Mapping[str, Field]] = {
    "broker": RECORDS["broker"],
    "replica": RECORDS["replica"],
    "segment": RECORDS["segment"],
    "offset": Field("bigint", "first byte of the block, from the start of the log"),
    "length": Field("int", "bytes of the block, less at the end of a file or of the log"),
    "crc32": Field("bigint", "CRC-32 of the bytes as they lie on disk, 0 to 2^32-1"),
}
"""View `blocks`: one row for each blockBytes of the log, up to its confirmed end."""

FILES: Final[Mapping[str, Field]] = {
    "broker": RECORDS["broker"],
    "replica": RECORDS["replica"],
    "path": Field("string", "path of the segment"),
    "segment": RECORDS["segment"],
    "bytes": Field("bigint", "length of the file"),
    "end": Field("bigint", "offset behind its last record, from the start of the log"),
    "records": Field("bigint", "records that are whole and right"),
    "malformed": Field("bigint", "rows that PERMISSIVE marks as corrupt"),
    "malformed_bytes": Field("bigint", "bytes of those rows"),
    "resyncs": Field("bigint", "how often the reader had to search for the next record"),
    "reasons": Field("string", "reason=count, joined by commas, sorted"),
    "first_store_timestamp": Field("timestamp", "store time of the first record"),
    "last_store_timestamp": Field("timestamp", "store time of the last record"),
}
"""View `files`: one row a segment, every record checked."""

VIEWS: Final[Mapping[str, Mapping[str, Field]]] = {
    "records": RECORDS,
    "consumequeue": QUEUES,
    "index": INDEX,
    "blocks": BLOCKS,
    "files": FILES,
}

DERIVED: Final = ("tags", "keys", "uniq_key", "headers")
"""Columns that cost a search in the properties each."""
DEFAULT_COLUMNS: Final = tuple(
    name for name in RECORDS if name not in (*DERIVED, CORRUPT, "segment")
)
"""Columns of `records` when the user gives no schema."""

_ARROW: Final[Mapping[str, pyarrow.DataType]] = {
    "string": pyarrow.string(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "boolean": pyarrow.bool_(),
    "binary": pyarrow.binary(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "array<string>": pyarrow.list_(pyarrow.field("element", pyarrow.string())),
    "map<string,string>": pyarrow.map_(pyarrow.string(), pyarrow.string()),
    CORRUPT_TYPE: pyarrow.struct(
        [("offset", pyarrow.int64()), ("reason", pyarrow.string()), ("bytes", pyarrow.binary())]
    ),
}
"""Spark's Arrow form of each type (`to_arrow_type`)."""
_DDL: Final = {"timestamp": "timestamp_ltz"}
"""Types whose short name means what `spark.sql.timestampType` says."""


def default_columns(view: str) -> tuple[str, ...]:
    """Columns of a view when the user names none."""
    return DEFAULT_COLUMNS if view == "records" else tuple(VIEWS[view])


def described(view: str) -> str:
    """The columns of a view for people: name, type, meaning with its unit."""
    return "\n".join(
        f"    {name} {'struct' if name == CORRUPT else field.type}: {field.meaning}"
        for name, field in VIEWS[view].items()
    )


def records_ddl(columns: Sequence[str] | None = None, corrupt: str = CORRUPT) -> str:
    """Columns of `records` as a DDL text (None: the default ones). Raises `SchemaError`."""
    return view_ddl("records", columns, corrupt)


def view_ddl(view: str, columns: Sequence[str] | None = None, corrupt: str = CORRUPT) -> str:
    """Columns of a view as a DDL text; `corrupt` is what `_corrupt` is called there."""
    names = default_columns(view) if columns is None else tuple(columns)
    ours = spelled(view, names, corrupt)
    check_columns(view, ours, corrupt)
    table = VIEWS[view]
    types = (table[canonical(mine, corrupt)].type for mine in ours)
    return ", ".join(
        f"`{name}` {_DDL.get(one, one)}" for name, one in zip(names, types, strict=True)
    )


def canonical(name: str, corrupt: str = CORRUPT) -> str:
    """The name of a column in the tables here."""
    return CORRUPT if name == corrupt else name


def check_columns(view: str, names: Sequence[str], corrupt: str = CORRUPT) -> None:
    """Raises `SchemaError`, naming the valid columns, for one that the view does not have."""
    table = VIEWS[view]
    if not names:
        raise SchemaError(f"no column is asked for; the view {view} has: {', '.join(table)}")
    unknown = [
        name
        for name in names
        if canonical(name, corrupt) not in table or name == CORRUPT != corrupt
    ]
    if unknown:
        valid = ", ".join(corrupt if name == CORRUPT else name for name in table)
        raise SchemaError(
            f"the view {view} of rocketbed has no column {', '.join(unknown)}; it has: {valid}"
        )
    if len(set(names)) != len(names):
        raise SchemaError(f"duplicate column in the schema: {', '.join(names)}")


def spelled(view: str, names: Sequence[str], corrupt: str = CORRUPT) -> list[str]:
    """Return columns in our spelling, ignoring case; an unknown one is returned unchanged."""
    ours = {name.lower(): name for name in VIEWS[view] if name != CORRUPT}
    ours[corrupt.lower()] = corrupt
    return [ours.get(name.lower(), name) for name in names]


def arrow_schema(
    view: str, columns: Sequence[str] | None = None, corrupt: str = CORRUPT
) -> pyarrow.Schema:
    """Columns of a view as Spark's Arrow schema, every one nullable. Raises `SchemaError`."""
    names = default_columns(view) if columns is None else tuple(columns)
    check_columns(view, names, corrupt)
    table = VIEWS[view]
    return pyarrow.schema([(name, _ARROW[table[canonical(name, corrupt)].type]) for name in names])


def renamed(
    batches: Iterator[pyarrow.RecordBatch], names: Sequence[str]
) -> Iterator[pyarrow.RecordBatch]:
    """Batches whose columns are called as the user calls them."""
    for batch in batches:
        yield batch if batch.schema.names == names else batch.rename_columns(list(names))
