"""Reads history files that are not the testbed's: lines of JSON, and Arrow's own file format.

Arrow parses JSON several times as fast as Spark does, and says which row is wrong.
"""

import difflib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow

FILE_COLUMNS: Final[Mapping[str, str]] = {
    "kind": "string",
    "group": "string",
    "client": "string",
    "uniq_key": "string",
    "broker": "string",
    "topic": "string",
    "queue_id": "bigint",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "body_crc": "bigint",
    "sent_ns": "bigint",
    "done_ns": "bigint",
    "received_ns": "bigint",
    "outcome": "string",
}
"""Fields of a row; other fields are ignored, unless a name is so near that it must be a typo."""
FILE_DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in FILE_COLUMNS.items())
SHOWN: Final = 80
NEAR: Final = 0.8
"""Minimum similarity of a mistyped name: `bodycrc`, `sent_ms`, but not `queue`."""
TAIL_BYTES: Final = 1 << 16


class HistoryCut(PipelineError):
    """A history is incomplete, and proves nothing."""


class BadHistory(PipelineError):
    """Rows of a history lack required values."""


def check_last_line(path: str) -> None:
    """Raise `HistoryCut` for JSON lines that break off in the middle of the last one."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        tail = b""
        at = size
        while at > 0 and b"\n" not in tail.rstrip(b"\r\n"):
            step = min(TAIL_BYTES, at)
            at -= step
            file.seek(at)
            tail = file.read(step) + tail
        line = tail.rstrip(b"\r\n").rpartition(b"\n")[2]
        if not line.strip():
            return
        try:
            json.loads(line)
        except ValueError:
            file.seek(0)
            number = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))
            raise HistoryCut(
                f"the history {path} is not whole: its last line, {number + 1}, breaks off after"
                f" {len(line)} bytes; nothing is judged by half a history"
            ) from None


def line_batches(path: str, start: int, end: int) -> "Iterator[pyarrow.RecordBatch]":
    """Rows of the lines that begin in `[start, end)` of a file. Raises `BadHistory`."""
    import pyarrow
    from pyarrow import json as arrow_json

    at, data = _lines(path, start, end)
    if not data.strip():
        return
    read = arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1 << 16))

    def table(unexpected: str) -> "pyarrow.Table":
        parse = arrow_json.ParseOptions(
            explicit_schema=_schema(),
            unexpected_field_behavior=unexpected,
            newlines_in_values=False,
        )
        return arrow_json.read_json(io.BytesIO(data), read_options=read, parse_options=parse)

    try:
        parsed = table("error")
    except pyarrow.ArrowException:
        check_names(path, _names(data))
        try:
            parsed = table("ignore")
        except pyarrow.ArrowException as error:
            raise BadHistory(_invalid_line(path, at, data, str(error))) from error
    yield from parsed.to_batches(max_chunksize=16_384)


def arrow_batches(path: str) -> "Iterator[pyarrow.RecordBatch]":
    """An Arrow IPC file, with every column of ours; those that it lacks are null.

    Raises `HistoryCut`, `BadHistory`.
    """
    import pyarrow

    try:
        with pyarrow.memory_map(path) as file:
            reader = pyarrow.ipc.open_file(file)
            check_names(path, reader.schema.names)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else pyarrow.nulls(len(batch), field.type)
                    for field in _schema()
                ]
                yield pyarrow.RecordBatch.from_arrays(columns, schema=_schema())
    except (pyarrow.ArrowException, OSError) as error:
        raise HistoryCut(f"the history {path} is not whole: {error}") from error


def check_names(path: str, names: Iterable[str]) -> None:
    """Raise `BadHistory` for a field that is probably a typo: its values would not be checked."""
    for name in names:
        if name not in FILE_COLUMNS and (
            near := difflib.get_close_matches(name.lower(), FILE_COLUMNS, 1, NEAR)
        ):
            raise BadHistory(f"the history {path} has a field {name}: is {near[0]} meant?")


def _names(data: bytes) -> Iterator[str]:
    """Check the field names of all readable lines."""
    names: dict[str, None] = {}
    for line in data.splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            names |= dict.fromkeys(row if isinstance(row, dict) else ())
    return iter(names)


def _lines(path: str, start: int, end: int) -> tuple[int, bytes]:
    """Return the lines that begin in a stretch, and the start of the first one."""
    with open(path, "rb") as file:
        if start > 0:
            file.seek(start - 1)
            file.readline()
        at = file.tell()
        data = file.read(end - at) if at < end else b""
        if data and not data.endswith(b"\n"):
            data += file.readline()
    return at, data


def _invalid_line(path: str, at: int, data: bytes, reason: str) -> str:
    for line in data.splitlines(keepends=True):
        try:
            if line.strip() and not isinstance(json.loads(line), dict):
                raise ValueError("not a JSON object")
        except ValueError as error:
            excerpt = line[:SHOWN].decode(errors="replace").strip()
            return f"the history {path} has an invalid line at byte {at}: {error}: {excerpt!r}"
        at += len(line)
    return f"the history {path} has a row with a field of another type: {reason}"


def _schema() -> "pyarrow.Schema":
    import pyarrow

    kinds = {"string": pyarrow.string(), "bigint": pyarrow.int64()}
    return pyarrow.schema([(name, kinds[kind]) for name, kind in FILE_COLUMNS.items()])
