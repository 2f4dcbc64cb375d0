"""The manifest of an export: a JSON file beside the messages that lists the complete parts.

A part is entered as `pending` before Spark begins to write it, and among the `parts` once it is
complete. A run that is killed in between leaves a pending part; the next run writes that part again
over its incomplete files, so that no message is exported twice. Files of no part are incomplete.
"""

import json
import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from rocketbed.pipeline.errors import PipelineError, Unwritable
from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.jobs.export.place import Place

NAME: Final = "_rocketbed_manifest.json"
FORMAT: Final = 2
READABLE: Final = (1, FORMAT)
"""Format 1 had no `pending`, and only Parquet."""
BEFORE: Final = {
    "topics_pattern": "",
    "brokers": "",
    "clusters": "",
    "format_of_files": "parquet",
    "partition_by": ["topic", "date"],
    "source": "logs",
}
"""Settings of exports whose manifest does not have them yet."""


@dataclass(slots=True)
class Part:
    """An exported range of a broker's log, or of the queues of a cluster."""

    name: str
    broker: str = ""
    """Broker of the log; empty for queues."""
    start: int = 0
    """Offset in the log, bytes."""
    end: int = 0
    rows: int = 0
    malformed: int = 0
    """Places of the log that could not be read; the files do not have them."""
    wrong_crc: int = 0
    """Rows whose body does not match its stored checksum (the files have them, with `crc_ok`
    false), and rows of records with several messages that cannot be unpacked (`body` is null)."""
    crc: int = 0
    """Digest of the rows' positions and stored checksums, whatever their order."""
    mark: int = 0
    """Checksum of the log's last bytes before `end`, which reveals another log; 0: none."""
    begin_at: dict[str, Any] | None = None
    """Start of each queue, in the form of a stream's checkpoint; only for queues."""
    end_at: dict[str, Any] | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    """`path` below OUT, `rows`, `bytes`; none of a table format, which knows its files itself."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        return cls(**{item.name: row[item.name] for item in fields(cls) if item.name in row})


class Manifest:
    """State of the manifest file when it was last read or written."""

    def __init__(self, place: Place, settings: dict[str, Any]) -> None:
        """Read the manifest of an earlier run, or write a new one.

        Raises `WrongUsage` for a directory with other files, or with an export of other settings;
        `PipelineError` for an invalid manifest, or one that cannot be written.
        """
        self.place = place
        self.parts: list[Part] = []
        self.pending: list[Part] = []
        self._settings = settings
        self._written = ""
        """Id of the last write, to detect a concurrent one."""
        row = self._read()
        if row is None:
            if names := place.names():
                raise WrongUsage(
                    f"{place.path} holds {names[0]} and no {NAME}: give --out another, empty"
                    " directory"
                )
            self._write()
            return
        try:
            if row["format"] not in READABLE:
                raise ValueError(f"its format is {row['format']}")
            earlier = {key: row[key] if key in row else BEFORE[key] for key in settings}
            self.parts = [Part.of(part) for part in row["parts"]]
            self.pending = [Part.of(part) for part in row.get("pending", ())]
            self._written = row.get("written", "")
        except (ValueError, KeyError, TypeError) as error:
            raise self._invalid(error) from error
        changed = [key for key in settings if earlier[key] != settings[key]]
        if changed and not self.parts and place.names() == [NAME]:
            self.pending.clear()  # an earlier run failed before it wrote anything
            self._write()
        elif changed:
            key = changed[0]
            raise WrongUsage(
                f"{place.path} was exported with {key}={earlier[key]}, not {settings[key]}: give"
                " another --out"
            )

    def begin(self, part: Part) -> None:
        """Enter a part that is about to be written; a concurrent export fails at its next save."""
        self.pending = [*(pending for pending in self.pending if pending.name != part.name), part]
        self.save()

    def end(self, part: Part) -> None:
        """Enter a complete part."""
        self.pending = [pending for pending in self.pending if pending.name != part.name]
        self.parts.append(part)
        self.save()

    def save(self) -> None:
        """Write the file. Raises `PipelineError`, also after a concurrent write."""
        row = self._read()
        if row is None or row.get("written", "") != self._written:
            raise PipelineError(
                f"{self.place.at(NAME)} was changed by another export meanwhile: let only one"
                " export write there, and run this one again"
            )
        self._write()

    def _write(self) -> None:
        written = uuid.uuid4().hex
        row = {
            "format": FORMAT,
            **self._settings,
            "written": written,
            "pending": [asdict(part) for part in self.pending],
            "parts": [asdict(part) for part in self.parts],
        }
        try:
            self.place.write(NAME, json.dumps(row, indent=1) + "\n")
        except OSError as error:
            raise Unwritable(self.place.path, error) from error
        self._written = written

    def _read(self) -> dict[str, Any] | None:
        try:
            text = self.place.read(NAME)
        except OSError as error:
            raise PipelineError(f"{self.place.at(NAME)} cannot be read: {error}") from error
        if text is None:
            return None
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            raise self._invalid(error) from error
        return row

    def _invalid(self, error: Exception) -> PipelineError:
        return PipelineError(
            f"invalid manifest {self.place.at(NAME)}: {error}; export to another --out"
        )
