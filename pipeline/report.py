"""Report of a job at its end: a JSON file for programs, some lines for people.

A chaos run or a night's audit reads it later, so it names what was read (stores with their sizes
and how far they are confirmed), with which versions, what was counted, how long each phase took,
and one verdict: `good`, `finding`, `unreadable`, `spark-failed`, `unwritable`, `usage` or
`interrupted`.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from rocketbed.pipeline.errors import (
    EXIT_FINDING,
    EXIT_GOOD,
    EXIT_SPARK,
    EXIT_UNREADABLE,
    EXIT_UNWRITABLE,
)

EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130
FORMAT: Final = 1
WORDS: Final = {
    EXIT_GOOD: "good",
    EXIT_FINDING: "finding",
    EXIT_UNREADABLE: "unreadable",
    EXIT_SPARK: "spark-failed",
    EXIT_UNWRITABLE: "unwritable",
    EXIT_USAGE: "usage",
    EXIT_INTERRUPTED: "interrupted",
}
PACKAGES: Final = ("rocketbed", "pyspark", "pyarrow", "numpy", "pandas")


@dataclass(slots=True)
class Report:
    """Report of a job. Times in seconds."""

    job: str
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """UTC, ISO 8601."""
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Inputs: an entry for each store or file that was read."""
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in order."""
    counts: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    """Every existing check, with its result."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Findings of the checks: id, title, count, examples."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """Files written by a job that lists them: path, entries, crc."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Row counts of a job that writes tables, by the table's name."""
    notes: list[str] = field(default_factory=list)
    error: str = ""
    exit_code: int = EXIT_GOOD
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def verdict(self) -> str:
        return WORDS.get(self.exit_code, "failed")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block for this phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.phases[name] = round(self.phases.get(name, 0.0) + spent, 3)

    def as_row(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "job": self.job,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "error": self.error,
            "began": self.began,
            "seconds": round(time.monotonic() - self._began_s, 3),
            "phases": self.phases,
            "inputs": self.inputs,
            "options": self.options,
            "versions": self.versions or versions(),
            "counts": self.counts,
            "checks": self.checks,
            "findings": self.findings,
            "files": self.files,
            "tables": self.tables,
            "notes": self.notes,
        }

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all. Raises `OSError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.as_row(), indent=1, default=str) + "\n")


def write_whole(path: Path, data: str | bytes) -> None:
    """Replace a file atomically: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Versions of the programs involved, as far as installed."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed
