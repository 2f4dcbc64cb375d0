"""Watches the programs of a cluster: what their logs report, and how and why they end.

A program is tracked from its start until its end is in the history. The cause of an end is
announced beforehand (`blame`); an end without that is a crash, and the last line of the log is its
reason.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from rocketbed.chaos.backends.process.software import Software
from rocketbed.chaos.evidence.history import Function, HistoryWriter
from rocketbed.chaos.evidence.node_events import REFUSALS, REPAIRED
from rocketbed.host.member import Launched

LOOK_S: Final = 0.005
REPORT_S: Final = 0.5
"""Period for reading the reports in the log of a node that serves."""
POWER_CUT: Final = "powercut"
CRASH: Final = "crash"

Struck = Callable[[str, int | None], str | None]
"""Maps a node that ended and its exit code to the effect of its crash point (`kill`,
`powercut`)."""


@dataclass(eq=False, slots=True)
class Watcher:
    software: Software
    history: HistoryWriter
    nodes: Collection[str]
    """Programs whose logs are read."""
    segment: int
    """Bytes of a log segment."""
    struck: Struck
    lose_unflushed: Callable[[str], Awaitable[None]]
    """Called for a node that died with its power."""
    _causes: dict[Launched, str] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    _reports: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Log events and texts of the latest start."""
    _refusals: dict[str, str] = field(default_factory=dict)
    """Why the latest start follows no master until it is emptied."""
    _expired: dict[str, int] = field(default_factory=dict)
    """Number of segments that the latest start was seen to delete."""
    _counts: dict[str, int] = field(default_factory=dict)
    _handled: dict[Launched, trio.Event] = field(default_factory=dict)
    """One event per watched program, set once its end has been handled."""

    def begin(self, name: str, process: Launched) -> int:
        """Track a program that is about to start. Return the position in its log file."""
        self._reasons.pop(name, None)
        self._reports[name] = []
        self._refusals[name] = ""
        self._expired[name] = 0
        self._handled[process] = trio.Event()
        with suppress(FileNotFoundError):
            return process.log_path.stat().st_size
        return 0

    def give_up(self, process: Launched) -> None:
        self._handled.pop(process).set()

    def blame(self, process: Launched, cause: str, *, first: bool = False) -> None:
        """Announce the cause of its end; with `first` only if it has no cause yet."""
        if not first or process not in self._causes:
            self._causes[process] = cause

    def has(self, process: Launched | None) -> bool:
        return process in self._handled

    async def off(self, process: Launched | None) -> None:
        """Wait until its end is in the history."""
        if process is not None and (handled := self._handled.get(process)) is not None:
            await handled.wait()

    def ends(self, name: str) -> int:
        return self._counts.get(name, 0)

    def reason(self, name: str) -> str:
        """Return why it ended, if on its own and not started since."""
        return self._reasons.get(name, "")

    def reported(self, name: str) -> str:
        """Return its report of damage that is not repaired, since its last start."""
        texts = [text for event, text in self._reports.get(name, ()) if event != REPAIRED]
        return texts[-1] if texts else ""

    def refuses(self, name: str) -> str:
        return self._refusals.get(name, "")

    async def watch(self, name: str, process: Launched, log_begin: int) -> None:
        """Read a node's log; record the end."""
        is_node = name in self.nodes
        if is_node:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log, name, process, log_begin)
                code = await process.wait_ended()
                nursery.cancel_scope.cancel()
            self._note_reports(name, process, log_begin)
            for fields in self.software.cuts(_read(process, log_begin)):
                self.history.event(Function.NODE, name, "cut", dict(fields))
        else:
            code = await process.wait_ended()
        cause = self._causes.pop(process, CRASH)
        struck = self.struck(name, code) if cause == CRASH else None
        if struck is not None:
            cause = struck
        elif cause == CRASH:
            log = _read(process, log_begin).decode("utf-8", "replace")
            self._reasons[name] = self.software.reason(log.strip(), code)
            if is_node and self.reason(name).startswith(REFUSALS):
                self._report(name, "node.failed", self.reason(name))
        if is_node:
            fields = {"cause": cause, "code": code, "reason": self.reason(name)}
            self.history.event(Function.NODE, name, "exit", fields)
        if struck == POWER_CUT:
            await self.lose_unflushed(name)
        self._counts[name] = self.ends(name) + 1
        self._handled.pop(process).set()

    async def _read_log(self, name: str, process: Launched, log_begin: int) -> None:
        while (fields := self.software.recovered(_read(process, log_begin))) is None:
            await trio.sleep(LOOK_S)
        self.history.event(Function.NODE, name, "recovered", dict(fields))
        while True:
            self._note_reports(name, process, log_begin)
            await trio.sleep(REPORT_S)

    def _note_reports(self, name: str, process: Launched, log_begin: int) -> None:
        log = _read(process, log_begin)
        for report in self.software.reports(log):
            if report not in self._reports[name]:
                self._report(name, *report)
        self._refusals[name] = self.software.refuses(log)
        for start in self.software.expired(log)[self._expired[name] :]:
            self._expired[name] += 1
            fields = {"start": start, "size": self.segment}
            self.history.event(Function.NODE, name, "expired", fields)

    def _report(self, name: str, event: str, text: str) -> None:
        self._reports[name].append((event, text))
        self.history.event(Function.NODE, name, "reported", {"event": event, "text": text})


def _read(process: Launched, log_begin: int) -> bytes:
    return process.log_path.read_bytes()[log_begin:]
