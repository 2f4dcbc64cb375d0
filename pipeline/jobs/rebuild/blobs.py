"""Runs of units and keys in staging files, from the first pass of `rebuild` to the second.

Only the descriptions of runs go through Spark, not the runs: moving 100 MB of a 1 GiB log through
the JVM would cost more than all the decoding. So the output directory has to be visible at the same
path on every worker, which the result needs anyway. A task writes a file with a unique name, so a
task that Spark runs twice does no harm.
"""

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy
import pyarrow
from numpy.typing import NDArray

from rocketbed.pipeline.files.arrays import flags, numbers, texts

QUEUE: Final = "queue"
BATCH: Final = "batch"
INDEX: Final = "index"
SPLIT: Final = "split"
DAMAGE: Final = "damage"

UNITS: Final = numpy.dtype(
    [("slot", "<i8"), ("offset", "<i8"), ("size", "<i4"), ("tag_code", "<i8")]
)
"""Units of a plain queue in a run; `slot` is the queue offset."""
BATCH_UNITS: Final = numpy.dtype([*UNITS.descr, ("store_ms", "<i8"), ("messages", "<i4")])
KEYS: Final = numpy.dtype([("hash", "<i4"), ("offset", "<i8"), ("store_ms", "<i8")])
"""Keys of the index in a run, in their order."""
LAYOUTS: Final = {QUEUE: UNITS, BATCH: BATCH_UNITS, INDEX: KEYS}

_TEXTS: Final = ("kind", "path", "blob", "text")


class Run(NamedTuple):
    """A run of units or keys, or (kinds `split`, `damage`) a task's report on its split."""

    kind: str
    path: str = ""
    """Directory of a queue, below the output directory: `consumequeue/TOPIC/ID`."""
    file: int = 0
    """Number of the file in its queue, or of the index file."""
    at: int = 0
    """Order of the runs of a path: offset of the first record that was gathered with this run.
    Of damage: its start."""
    items: int = 0
    """Units or keys; of damage: bytes; of a split: records."""
    last_ms: int = 0
    """Keys: store time of the last one; after splitting by files, of the key before the file."""
    blob: str = ""
    position: int = 0
    text: str = ""
    """The reason for damage; JSON for a split."""

    def read(self) -> NDArray[Any]:
        """Read the units or keys. Raises `OSError`."""
        layout = LAYOUTS[self.kind]
        with open(self.blob, "rb") as file:
            file.seek(self.position)
            data = file.read(self.items * layout.itemsize)
        if len(data) < self.items * layout.itemsize:
            raise OSError(0, "a staging file of the rebuild is cut short", self.blob)
        return numpy.frombuffer(data, layout)


RUN_DDL: Final = ", ".join(
    f"`{name}` {'string' if name in _TEXTS else 'bigint'}" for name in Run._fields
)
_SCHEMA: Final = pyarrow.schema(
    [(name, pyarrow.string() if name in _TEXTS else pyarrow.int64()) for name in Run._fields]
)


def table_of(runs: Iterable[Run]) -> pyarrow.Table:
    return pyarrow.Table.from_batches([batch_of(runs)])


def batch_of(runs: Iterable[Run]) -> pyarrow.RecordBatch:
    return columns_of(list(runs), _SCHEMA)


def columns_of(rows: Sequence[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Convert rows of texts, 64-bit numbers and booleans to a batch, without loading pandas."""
    arrays = []
    for place, field in enumerate(schema):
        values = [row[place] for row in rows]
        if field.type == pyarrow.string():
            arrays.append(texts([value.encode() for value in values], field.type))
        elif field.type == pyarrow.bool_():
            arrays.append(flags(numpy.array(values, bool)))
        else:
            arrays.append(numbers(numpy.array(values, numpy.int64)))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def runs_of(batch: pyarrow.RecordBatch) -> list[Run]:
    """Return the runs in a batch that has their columns, in any order."""
    return [Run(**row) for row in batch.select(list(Run._fields)).to_pylist()]


class BlobWriter:
    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, uuid4().hex)
        self._file = open(self._path, "wb")  # noqa: SIM115 (closed with the writer)
        self._position = 0

    def __enter__(self) -> "BlobWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, items: NDArray[Any], run: Run) -> Run:
        """Write the items of a run, and return the run with its place. Raises `OSError`."""
        begin = self._position
        self._file.write(items.tobytes())
        self._position += items.nbytes
        return run._replace(blob=self._path, position=begin, items=len(items))
