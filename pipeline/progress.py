"""Show a job's progress on standard error: a line for each phase, and the tasks of Spark.

Without a terminal there are only the lines of the phases, so that a log stays short. On a terminal
the tasks of the running stages are counted a few times a second, by Spark's status tracker in a
thread of its own, or through Connect's progress handler.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 0.25
WIDTH: Final = 78


class Progress:
    """Lines of phases; `attach` a session to have tasks counted too."""

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty() if live is None else live
        self._count: Callable[[], str] = lambda: ""
        self._painter: _Painter | None = None
        self._text = ""

    def attach(self, spark: "SparkSession") -> None:
        """Start to count this session's tasks."""
        if not self._live:
            return
        register = getattr(spark, "registerProgressHandler", None)
        if register is not None and "connect" in type(spark).__module__:
            register(self._hear)
            self._count = lambda: self._text
        else:
            tracker = spark.sparkContext.statusTracker()
            self._count = lambda: count_tasks(tracker)

    def say(self, line: str) -> None:
        if self._painter is not None:
            self._painter.clear()
        print(line, file=self._stream, flush=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show the start of a phase, and its duration when it ends without an error."""
        began = time.monotonic()
        if self._live:
            self._painter = _Painter(self._stream, name, lambda: self._count())
        else:
            self.say(f"{name} ...")
        done = False
        try:
            yield
            done = True
        finally:
            if self._painter is not None:
                self._painter.end()
                self._painter = None
            if done and self._live:
                self.say(f"{name}: {time.monotonic() - began:.1f} s")

    def _hear(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        tasks = sum(stage.num_tasks for stage in stages or ())
        ready = sum(stage.num_completed_tasks for stage in stages or ())
        self._text = f"{ready}/{tasks} tasks" if tasks else ""


def count_tasks(tracker: Any) -> str:
    """`12/40 tasks` of the stages that run now; empty when none does."""
    ready = tasks = 0
    for number in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(number)
        if stage is not None:
            ready += stage.numCompletedTasks
            tasks += stage.numTasks
    return f"{ready}/{tasks} tasks" if tasks else ""


class _Painter:
    """Line that is repainted until the phase is over."""

    def __init__(self, stream: TextIO, name: str, count: Callable[[], str]) -> None:
        self._stream = stream
        self._name = name
        self._count = count
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._status = _rich_status(stream, name)
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def clear(self) -> None:
        """Take the line away for another."""
        if self._status is None:
            with self._lock:
                self._stream.write("\r" + " " * WIDTH + "\r")

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        if self._status is not None:
            self._status.stop()
        self.clear()

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            text = ""
            with suppress(Exception):  # a session that is being stopped
                text = self._count()
            line = f"{self._name} {text} {time.monotonic() - self._began:.0f} s"[:WIDTH]
            if self._status is not None:
                self._status.update(line)
                continue
            with self._lock:
                self._stream.write("\r" + line.ljust(WIDTH))
                self._stream.flush()


def _rich_status(stream: TextIO, name: str) -> Any:
    """rich's spinner, where rich is installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    status = Console(file=stream).status(name)
    status.start()
    return status
