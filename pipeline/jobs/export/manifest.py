"""What of an export is whole: a JSON file beside the messages.

A part is entered as `pending` before Spark begins to write it, and among the `parts` once it is
whole. A run that was killed between leaves the pending one; the next run writes that very part
again, over what is there, so nothing is twice. What no part names is not whole.
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
"""Before it there was no `pending`, and only Parquet."""
BEFORE: Final = {
    "topics_pattern": "",
    "brokers": "",
    "clusters": "",
    "format_of_files": "parquet",
    "partition_by": ["topic", "date"],
    "source": "logs",
}
"""What was exported when the manifest did not say so yet."""


@dataclass(slots=True)
class Part:
    """One range: of a broker's log, or of the queues of a cluster."""

    name: str
    broker: str = ""
    """Whose log; empty for queues."""
    start: int = 0
    """Bytes of the log."""
    end: int = 0
    rows: int = 0
    malformed: int = 0
    """Places of the log that could not be read; they are not in the files."""
    wrong_crc: int = 0
    """Rows whose body does not match its stored checksum; they are, with `crc_ok` false. And those
    of records of several messages that cannot be unpacked; their `body` is null."""
    crc: int = 0
    """Digest of the rows' positions and stored checksums, whatever their order."""
    mark: int = 0
    """Checksum of the log's last bytes before `end`, by which another log is known; 0: none."""
    begin_at: dict[str, Any] | None = None
    """Of queues: where each begins, as a stream's checkpoint has it."""
    end_at: dict[str, Any] | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    """`path` below OUT, `rows`, `bytes`; none of a table format, which knows its files itself."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        return cls(**{each.name: row[each.name] for each in fields(cls) if each.name in row})


class Manifest:
    """The file as it was read or written last."""

    def __init__(self, place: Place, asked: dict[str, Any]) -> None:
        """Read that of an earlier run, or write a new one.

        Raises `WrongUsage` for a directory of something else, or with messages of an export that
        was asked for something else; `PipelineError` for a file that is none, and what cannot be
        written.
        """
        self.place = place
        self.parts: list[Part] = []
        self.pending: list[Part] = []
        self._asked = asked
        self._written = ""
        """Of the last write: somebody else's may not come between."""
        found = self._read()
        if found is None:
            if others := place.names():
                raise WrongUsage(
                    f"{place.path} holds {others[0]} and no {NAME}: give --out another, empty"
                    " directory"
                )
            self._write()
            return
        try:
            if found["format"] not in READABLE:
                raise ValueError(f"its format is {found['format']}")
            known = {key: found[key] if key in found else BEFORE[key] for key in asked}
            self.parts = [Part.of(row) for row in found["parts"]]
            self.pending = [Part.of(row) for row in found.get("pending", ())]
            self._written = found.get("written", "")
        except (ValueError, KeyError, TypeError) as error:
            raise self._invalid(error) from error
        changed = [key for key in asked if known[key] != asked[key]]
        if changed and not self.parts and place.names() == [NAME]:
            self.pending.clear()  # a run with an error in it, that came to write nothing
            self._write()
        elif changed:
            key = changed[0]
            raise WrongUsage(
                f"{place.path} was exported with {key}={known[key]}, not {asked[key]}: give another"
                " --out"
            )

    def begin(self, part: Part) -> None:
        """Enter a part that is about to be written; who had begun it as well finds that out."""
        self.pending = [*(one for one in self.pending if one.name != part.name), part]
        self.save()

    def end(self, part: Part) -> None:
        """Enter a part that is whole."""
        self.pending = [one for one in self.pending if one.name != part.name]
        self.parts.append(part)
        self.save()

    def save(self) -> None:
        """Raises `PipelineError`, also when somebody else wrote it meanwhile."""
        found = self._read()
        if found is None or found.get("written", "") != self._written:
            raise PipelineError(
                f"{self.place.at(NAME)} was changed by another export meanwhile: let only one"
                " export write there, and run this one again"
            )
        self._write()

    def _write(self) -> None:
        written = uuid.uuid4().hex
        row = {
            "format": FORMAT,
            **self._asked,
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
