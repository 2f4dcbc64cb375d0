"""Disk faults inside real processes, and a trace of their syncs, by a preloaded library.

The library is built with gcc from `shim.c` at first use. Each node gets a `DiskFaults` with a
directory outside of its volume: a power cut must not take the evidence along.

    faults = DiskFaults(directory, root=volume.path)
    start(command, environment=faults.environment())
    faults.set_rules([DiskRule(operation="sync", effect="error", path="*commitlog*", times=1)])
    faults.flush_trace()       # what was durable when, from below the node (chaos.md 2.2)
"""

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.process.disk.format import (
    RULES_MAX,
    RULES_NUMBER_AT,
    DiskRule,
    FlushRecord,
    new_table,
    read_flush_trace,
)
from rocketbed.host.errors import HostError
from rocketbed.host.program import PRELOAD

SOURCE: Final = Path(__file__).with_name("shim.c")
INCLUDED: Final = Path(__file__).with_name("shim_rules.h")
BUILD_S: Final = 60.0


class DiskFaults:
    """Faults and trace of one node, over all its starts."""

    def __init__(self, directory: Path, *, root: Path) -> None:
        """`root` is the directory whose files are affected. Raises `HostError` if there is no
        library."""
        self.library = build_shim()
        self.directory = directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.trace_path = self.directory / "flush.trace"
        self.rules_path = self.directory / "rules"
        self._starts = 0
        self._count = 0
        self._rules: list[tuple[int, DiskRule]] = []
        self._written = 1
        """Number of the rules, which tells processes to read them; each table begins with 1."""
        self._write_rules()

    @property
    def table_path(self) -> Path:
        """The table of the latest start."""
        return self.directory / f"written.{self._starts}"

    def environment(self) -> dict[str, str]:
        """Return the environment of the next start, which begins an empty table; the trace
        continues."""
        self._starts += 1
        new_table(self.table_path)
        return {
            PRELOAD: str(self.library),
            "ROCKETBED_DISK_ROOT": str(self.root),
            "ROCKETBED_DISK_RULES": str(self.rules_path),
            "ROCKETBED_DISK_TABLE": str(self.table_path),
            "ROCKETBED_DISK_TRACE": str(self.trace_path),
        }

    def set_rules(self, rules: Iterable[DiskRule]) -> None:
        """Replace the rules; each later call obeys them. Raises `HostError`.

        A rule that stays (an equal one) keeps its counts.
        """
        former = list(self._rules)
        fresh: list[tuple[int, DiskRule]] = []
        for rule in rules:
            numbered = next((entry for entry in former if entry[1] == rule), None)
            if numbered is None:
                self._count += 1
                numbered = (self._count, rule)
            else:
                former.remove(numbered)
            fresh.append(numbered)
        if len(fresh) > RULES_MAX:
            raise HostError(f"at most {RULES_MAX} rules, not {len(fresh)}")
        self._rules = fresh
        self._write_rules()

    def flush_trace(self) -> list[FlushRecord]:
        """Return every sync so far, over all starts."""
        return read_flush_trace(self.trace_path)

    def _write_rules(self) -> None:
        temporary = self.rules_path.with_suffix(".tmp")
        temporary.write_text("".join(rule.line(number) for number, rule in self._rules))
        temporary.replace(self.rules_path)
        self._written += 1
        if self._starts:
            with self.table_path.open("r+b", buffering=0) as table:
                os.pwrite(table.fileno(), struct.pack("=Q", self._written), RULES_NUMBER_AT)


def build_shim(directory: Path | None = None) -> Path:
    """Return the library, built unless one of the same source exists. Raises `HostError`."""
    directory = directory or Path(tempfile.gettempdir()) / f"rocketbed-build-{os.geteuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.geteuid():
        raise HostError(f"{directory} is owned by another user; remove it")
    source = SOURCE.read_bytes() + INCLUDED.read_bytes()
    library = directory / f"shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise HostError("disk faults need a C compiler; install gcc and libc6-dev")
    temporary = library.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(temporary), str(SOURCE)]
    command += ["-ldl", "-lpthread"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_S)
    except subprocess.CalledProcessError as exc:
        raise HostError(f"{compiler} cannot build {SOURCE.name}:\n{exc.stderr}") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise HostError(f"{compiler} cannot build {SOURCE.name}: {exc}") from exc
    temporary.replace(library)
    return library


def join_environments(*parts: Mapping[str, str]) -> dict[str, str]:
    """Merge environments into one; preloaded libraries add up."""
    joined: dict[str, str] = {}
    for part in parts:
        for name, value in part.items():
            if name == PRELOAD and joined.get(name):
                value = f"{joined[name]}:{value}"
            joined[name] = value
    return joined
