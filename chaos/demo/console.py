"""What a trial shows on a terminal: a bar while it runs, plain lines where nobody watches.

Everything goes to one stream, so that `--json` can have the other.
"""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from chaos.checkers.result import CheckResult, Verdict
from chaos.demo.load import Counts
from chaos.demo.report import command_again, show_count, show_mib, show_seconds
from chaos.demo.verdict import DemoVerdict

PLAIN_WIDTH: Final = 120
NOTES_WIDTH: Final = 105
"""Notes are left to the report where the terminal is narrower."""
STYLES: Final = {Verdict.OK: "green", Verdict.VIOLATED: "bold red", Verdict.DID_NOT_RUN: "yellow"}


class DemoConsole:
    """A `Show` for people. A context manager."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        width = None if stream.isatty() else PLAIN_WIDTH
        self._console = Console(file=stream, width=width, highlight=False)
        self._progress: Progress | None = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.fields[at]:5.1f} s  {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("acknowledged, {task.fields[rate]}/s"),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=None, at=0.0, rate=0)
        self._last = 0.0, 0

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, line: str) -> None:
        """Something happened."""
        self._console.print(Text(line))

    def tick(self, phase: str, at_s: float, counts: Counts, total: int) -> None:
        """How far it is."""
        last_s, last = self._last
        rate = round((counts.acknowledged - last) / max(at_s - last_s, 0.001))
        self._last = at_s, counts.acknowledged
        if self._progress is not None:
            self._progress.update(
                self._task,
                description=phase,
                completed=counts.acknowledged,
                total=total,
                at=at_s,
                rate=rate,
            )
        elif phase == "writing":
            self.say(
                f"{at_s:6.2f} s  {phase}: {counts.acknowledged} of {total} acknowledged,"
                f" {rate}/s; unknown {counts.unknown}, refused {counts.refused}"
            )

    def tell(self, verdict: DemoVerdict) -> None:
        """The tables at the end."""
        facts = verdict.facts
        if facts.get("starts"):
            self._console.print(_recoveries(facts["starts"]))
        if verdict.checks:
            self._console.print(_checks(verdict.checks, notes=self._console.width >= NOTES_WIDTH))
        for check in verdict.checks:
            for finding in check.findings[:3]:
                self.say(f"  {check.title}: {finding}")
            if check.verdict is Verdict.DID_NOT_RUN:
                self.say(f"  {check.title} did not run: {check.note}")
        if facts.get("loss"):
            loss = facts["loss"]
            lost = "not known" if loss["lost"] is None else show_count(loss["lost"])
            self.say(
                f"allowed loss {loss['allowed']}, lost {lost},"
                f" of {show_count(loss['acknowledged'])} acknowledged messages"
            )
        for text in (verdict.stalled, verdict.error):
            if text:
                self.say(text)
        style = "bold green" if verdict.exit_code == 0 else "bold red"
        self._console.print(Text(f"{verdict.result}", style=style), end="")
        seconds = facts.get("seconds", {}).get("in_all", "?")
        self.say(f" in {seconds} s; again: {command_again(verdict.as_row())}")


def _checks(checks: Sequence[CheckResult], *, notes: bool) -> Table:
    table = Table(title="checks", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("examined", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", justify="right")
    if notes:
        table.add_column("note")
    for check in checks:
        table.add_row(
            Text(check.title),
            Text(str(check.verdict), style=STYLES[check.verdict]),
            show_count(check.examined),
            check.unit,
            show_count(check.found),
            *([Text(check.note)] if notes else []),
        )
    return table


def _recoveries(starts: Sequence[dict[str, Any]]) -> Table:
    """Every start that followed a kill."""
    table = Table(title="recoveries", title_justify="left", box=SIMPLE_HEAD)
    for name in ("node", "why"):
        table.add_column(name, no_wrap=True)
    for name in ("log read", "records", "recovery", "serves after"):
        table.add_column(name, justify="right", no_wrap=True)
    for start in starts:
        if start["reason"] != "first" or start["scanned_bytes"]:
            table.add_row(
                start["node"],
                start["reason"],
                show_mib(start["scanned_bytes"]),
                show_count(start["records"]),
                "killed" if start["killed"] else show_seconds(start["recovery_s"]),
                show_seconds(start["serving_s"]),
            )
    return table
