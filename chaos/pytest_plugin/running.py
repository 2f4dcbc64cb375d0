"""Runs the body of a test, and reports the outcome to pytest.

The body runs in a forked process. What it printed is in pytest's file already; what pytest keeps in
memory (the log, and the output held by the fixture `capsys`) is sent back with the result.
"""

import contextlib
import os
import shlex
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import outcome
import pytest
import trio
from _pytest._code.code import (
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

import rocketbed
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.pytest_plugin.body import BUDGET
from rocketbed.chaos.pytest_plugin.collection import TRIAL, file_name
from rocketbed.chaos.pytest_plugin.errors import (
    BudgetSpent,
    ChecksFailed,
    ClusterFailed,
    TestingError,
)
from rocketbed.chaos.pytest_plugin.failure import (
    compared,
    ignore_all,
    replay_of_run,
    shrink_test,
    tell_story,
)
from rocketbed.chaos.pytest_plugin.fixtures import Deferred
from rocketbed.chaos.pytest_plugin.options import replay_of, report_directory
from rocketbed.chaos.pytest_plugin.spec import RunResult, RunSpec
from rocketbed.chaos.pytest_plugin.trial import Trial
from rocketbed.chaos.run.load import ClientFailure
from rocketbed.chaos.search.replay import save_replay
from rocketbed.chaos.search.shrink import Shrunk

RESULT: Final = pytest.StashKey[RunResult]()
STORY: Final = pytest.StashKey[list[str]]()
NOTES: Final = pytest.StashKey[list[str]]()
SHRUNK: Final = pytest.StashKey[set[str]]()
"""Tests with a shrunk failure: one of each is enough."""
PLAIN: Final = (ChecksFailed, ClusterFailed, BudgetSpent)
"""Errors whose text is complete: a traceback would only show our own code."""
TOLD: Final = (TestingError, ScenarioError, *ClientFailure)
"""Errors about a wrong call: only its place in the test matters."""
INSIDE: Final = (
    *(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (rocketbed, trio, outcome)),
    contextlib.__file__,
)
"""Places of code that is not the test's."""
OUTCOMES: Final = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception)
"""Exceptions of a body that are not failures."""


class RunFailed(Exception):
    """Stands for an error that cannot be sent from the process of its run; the real one is
    shown."""


def call(item: Any) -> None:
    """Run the body of a test; raises its error."""
    __tracebackhide__ = True
    trial: Trial = item.funcargs[TRIAL]
    arguments = _arguments(item)
    config = item.config
    if config.getoption("usepdb") or config.getoption("trace"):
        result, error = trial.run_here(arguments)
        if error is not None:
            if not isinstance(error, OUTCOMES):
                item.stash[RESULT] = result
            raise error
        _raise(item, result, None)
        return
    keep, logged = config.getoption("rb_keep"), _log_stream(config)
    logged_before = len(logged.getvalue())

    def keeps(result: RunResult) -> bool:
        return keep == "all" or (keep == "failed" and result.kind in ("failed", "broken"))

    def finish(result: RunResult, error: BaseException | None) -> None:
        result.logged = logged.getvalue()[logged_before:]
        result.printed = _printed(config)
        if error is not None:
            render(item, result, error)

    result = trial.run_forked(arguments, finish, keep=keeps)
    logged.write(result.logged)
    for stream, text in zip(("stdout", "stderr"), result.printed, strict=True):
        item.add_report_section("call", stream, text)
    if result.kind == "failed":
        item.stash[STORY] = _look_into(item, trial, arguments, result)
    elif (replayed := replay_of(config)) is not None:
        replay, test = replayed
        config.stash.setdefault(NOTES, []).append(f"{test.node}: {compared(replay, result)}")
    _raise(item, result, result.error)


def render(item: pytest.Item, result: RunResult, error: BaseException) -> None:
    """Render an error for pytest; called where it was raised."""
    if isinstance(error, OUTCOMES):
        kinds = dict(zip(OUTCOMES, ("skipped", "xfailed", "exit"), strict=True))
        result.kind, result.reason = kinds[type(error)], str(error.msg)
    elif isinstance(error, PLAIN):
        result.longrepr = _plain_longrepr(item, f"{type(error).__name__}: {error}")
    else:
        if isinstance(error, TOLD) and not item.config.getoption("fulltrace"):
            error.__traceback__ = _own_part(error.__traceback__)
        result.longrepr = item.repr_failure(pytest.ExceptionInfo.from_exception(error))
    result.error = error


def tell(item: pytest.Item, call_: "pytest.CallInfo[None]", report: Any) -> None:
    """Put the rendered error into the report, with the way to repeat it."""
    result = item.stash.get(RESULT, None)
    if result is None or call_.excinfo is None:
        return
    del item.stash[RESULT]
    if result.longrepr is None and result.kind == "broken":
        result.longrepr = _plain_longrepr(item, result.reason)
    if result.longrepr is not None:
        report.longrepr = result.longrepr
    lines = item.stash.get(STORY, None)
    if lines is None:
        lines = tell_story(item.funcargs[TRIAL].spec, result, [])  # type: ignore[attr-defined]
    if hasattr(report.longrepr, "addsection"):
        report.longrepr.addsection("rocketbed", "\n".join(lines))


def summarize(reporter: Any, config: pytest.Config) -> None:
    for line in config.stash.get(NOTES, []):
        reporter.write_line(f"rocketbed: {line}")


# --- inside


def _arguments(item: Any) -> dict[str, Any]:
    """Return the body's arguments, and async fixtures that it uses without naming them, in
    order."""
    names = item._fixtureinfo.argnames
    values = [(name, item.funcargs[name]) for name in item.fixturenames if name in item.funcargs]
    return {name: value for name, value in values if name in names or isinstance(value, Deferred)}


def _look_into(
    item: pytest.Item, trial: Trial, arguments: dict[str, Any], result: RunResult
) -> list[str]:
    """Shrink a failure and write its replay file. Return the lines about it."""
    config, spec = item.config, trial.spec
    replay = replay_of(config)
    if replay is not None:
        return tell_story(spec, result, [compared(replay[0], result)])
    option = config.getoption("rb_shrink")
    done = config.stash.setdefault(SHRUNK, set())
    is_first = spec.test not in done
    may_shrink = option if option is not None else spec.backend == "sim" and is_first
    notes: list[str] = []
    if may_shrink and result.signature != BUDGET:
        done.add(spec.test)
        spec, result, shrunk = _shrink(item, trial, arguments, result)
        if shrunk.reproduced:
            change = f"from {shrunk.steps_before} to {shrunk.steps_after} steps"
            notes.append(f"shrunk {change} in {shrunk.runs} runs")
        else:
            notes.append("it did not recur when the test was repeated")
    path = report_directory(config) / f"FAIL-{file_name(item)}.rbx"
    try:
        save_replay(replay_of_run(item.nodeid, spec, result), path)
        ignore_all(path.parent)
    except OSError as error:
        return tell_story(spec, result, [*notes, f"no replay file could be written: {error}"])
    test = shlex.quote(item.nodeid.partition("[")[0])
    place = shlex.quote(os.path.relpath(path))
    return tell_story(spec, result, [*notes, f"replay: pytest {test} --rb-replay {place}"])


def _shrink(
    item: pytest.Item, trial: Trial, arguments: dict[str, Any], result: RunResult
) -> tuple[RunSpec, RunResult, Shrunk]:
    """Look for a smaller run. The output of its runs is not shown, as the user did not start
    them."""
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    is_captured = capture is not None and capture.is_globally_capturing()

    def run(tried: RunSpec) -> RunResult:
        return trial.run_forked(arguments, lambda result, error: None, spec=tried, quiet=True)

    if is_captured:
        output, errors = capture.read_global_capture()
        item.add_report_section("call", "stdout", output)
        item.add_report_section("call", "stderr", errors)
    try:
        return shrink_test(trial.spec, result, run)
    finally:
        if is_captured:
            capture.read_global_capture()


def _printed(config: pytest.Config) -> tuple[str, str]:
    """Return what was printed into this process's memory only; before, `capsys` ends its
    capture."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        return "", ""
    capture.deactivate_fixture()
    if config.getoption("capture") != "sys":
        return "", ""
    printed: tuple[str, str] = tuple(capture.read_global_capture())
    return printed


def _log_stream(config: pytest.Config) -> StringIO:
    """Return the stream where pytest keeps the log of a test; a new one if pytest does not."""
    handler = getattr(config.pluginmanager.get_plugin("logging-plugin"), "report_handler", None)
    stream = getattr(handler, "stream", None)
    return stream if isinstance(stream, StringIO) else StringIO()


def _raise(item: pytest.Item, result: RunResult, error: BaseException | None) -> None:
    __tracebackhide__ = True
    if result.kind == "passed":
        return
    if result.kind == "skipped":
        raise pytest.skip.Exception(result.reason, _use_item_location=True)
    if result.kind == "xfailed":
        pytest.xfail(result.reason)
    if result.kind == "exit":
        raise error or pytest.exit.Exception(result.reason)
    item.stash[RESULT] = result
    if error is None:
        raise RunFailed(result.reason or result.signature)
    raise error if isinstance(error, Exception) else RunFailed(str(error))


def _own_part(traceback: TracebackType | None) -> TracebackType | None:
    """Cut a traceback after the last line that is not inside a library of ours; return all of it if
    there is no such line."""
    entries: list[TracebackType] = []
    last, entry = 0, traceback
    while entry is not None:
        entries.append(entry)
        if not entry.tb_frame.f_code.co_filename.startswith(INSIDE):
            last = len(entries)
        entry = entry.tb_next
    own_part: TracebackType | None = None
    for entry in reversed(entries[:last]):
        own_part = TracebackType(own_part, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return own_part or traceback


def _plain_longrepr(item: pytest.Item, text: str) -> ReprExceptionInfo:
    """Return pytest's form of a failure whose text is complete: plain lines, at the test's
    place."""
    lines = [f"E   {line}\n" for line in text.splitlines()]
    path, line, _ = item.location
    return ReprExceptionInfo(
        reprtraceback=ReprTraceback([ReprEntryNative(lines)], None, style="native"),
        reprcrash=ReprFileLocation(path, (line or 0) + 1, text.splitlines()[0]),
    )
