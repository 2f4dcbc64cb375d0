"""Common parts of all jobs: settings, a Spark session that starts at its first use, phases, report.

A job is a function `work(job)`. It raises a `PipelineError` for expected failures, fills
`job.report`, and sets `job.report.exit_code` to 1 if it has findings. `run_job` does the rest: it
explains Spark's errors in a sentence, writes the report in every case, and ends Spark, also after
Ctrl-C, so that no process and no staging directory is left.
"""

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.errors import PipelineError, Unwritable
from rocketbed.pipeline.jobs.failures import explain
from rocketbed.pipeline.progress import Progress
from rocketbed.pipeline.report import EXIT_INTERRUPTED, EXIT_USAGE, Report
from rocketbed.pipeline.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketbed.pipeline.option_table import Settings

JVM_END_S: Final = 20.0
_SECRET: Final = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
"""Words in the names of Spark's settings whose values are secret."""
STDERR: Final = 2


class WrongUsage(PipelineError):
    """Options that a job cannot fulfil; the message says what is possible."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Values of the common options of all jobs."""

    stores: tuple[str, ...] = ()
    """Store directories, `root` or `broker/replica=root`."""
    endpoints: str = ""
    """Name servers of a live cluster, instead of stores."""
    topics_pattern: str = ""
    """A regular expression for topics, instead of names."""
    brokers: str = ""
    """Names of the brokers whose queues are read, separated by commas; empty for all."""
    clusters: str = ""
    """Names of clusters, instead of brokers."""
    out: Path | None = None
    master: str = "local[*]"
    remote: str = ""
    """A Spark Connect address; overrides `master`."""
    conf: dict[str, str] = field(default_factory=dict)
    archive: str = ""
    """Archive for executors that have no rocketbed."""
    report: Path | None = None
    as_json: bool = False
    mode: str = "PERMISSIVE"
    columns: tuple[str, ...] = ()
    """Columns of the records; empty for the job's own choice."""
    spark_log: Path | None = None
    """File for Spark's own log; none by default, since its errors come back as exceptions."""

    def source_options(self) -> dict[str, str]:
        """Return the options for `spark.read.format("rocketbed")`. Raises `WrongUsage`."""
        from rocketbed.pipeline.option_values import read_nameservers

        if bool(self.stores) == bool(self.endpoints):
            problem = "two inputs" if self.stores else "no input"
            raise WrongUsage(f"{problem}: give --store DIR (repeatable) or --endpoints ADDRESS")
        try:
            read_nameservers(self.endpoints)
        except ValueError as exc:
            raise WrongUsage(f"--endpoints {self.endpoints}: expected {exc}") from None
        where = {"endpoints": self.endpoints} if self.endpoints else {"path": ",".join(self.stores)}
        fs = dict(self.file_systems(*self.stores))
        return {**where, **self.parts, "mode": self.mode, **fs}

    @property
    def parts(self) -> dict[str, str]:
        """Options for the part of a live cluster that is read. Raises `WrongUsage`."""
        texts = {"brokers": self.brokers, "clusters": self.clusters}
        selection = {name: value for name, value in texts.items() if value}
        if len(selection) > 1:
            raise WrongUsage("--brokers and --clusters cannot be combined: give one of them")
        if selection and not self.endpoints:
            raise WrongUsage(f"--{next(iter(selection))} is for live clusters: give --endpoints")
        return selection

    def topic_options(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the options to read these topics, or those that match the pattern; none for all.

        Raises `WrongUsage`.
        """
        from rocketbed.pipeline.option_values import read_pattern

        if not self.topics_pattern:
            return {"topics": ",".join(topics)} if topics else {}
        if topics:
            raise WrongUsage("--topic and --topics-pattern cannot be combined: give one of them")
        try:
            read_pattern(self.topics_pattern)
        except ValueError as exc:
            raise WrongUsage(f"--topics-pattern {self.topics_pattern}: expected {exc}") from None
        return {"topicsPattern": self.topics_pattern}

    def file_systems(self, *places: str) -> "Settings":
        """Return Spark's configuration of the file systems of some paths. Raises `OptionError`."""
        from rocketbed.pipeline.fs_settings import settings_of

        return settings_of(self.conf, *places)


class Job:
    def __init__(
        self,
        name: str,
        settings: JobSettings,
        *,
        progress: Progress | None = None,
        spark: "SparkSession | None" = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.report = Report(name)
        self.progress = progress or Progress()
        self._outer_spark = spark
        self._spark = spark
        self._staging: list[Path] = []
        self._contexts = ExitStack()
        self.interrupted = False
        """True after Ctrl-C, whatever error it led to."""

    @property
    def spark(self) -> "SparkSession":
        """The session, started at the first use. Raises `SparkMissing`."""
        if self._spark is None:
            with (
                self._interrupts_deferred(),
                self.phase("starting Spark"),
                quiet_java(self.settings.spark_log),
            ):
                self._spark = build_session(
                    f"rocketbed {self.name}",
                    master=self.settings.master,
                    remote=self.settings.remote,
                    conf=self.settings.conf,
                    archive=self.settings.archive,
                )
            self._take_interrupts()
            self.progress.attach(self._spark)
            self.report.versions = _all_versions(self._spark)
        return self._spark

    @property
    def cores(self) -> int:
        """Task slots of the cluster; over Connect they are unknown, so this machine's cores."""
        try:
            return int(self.spark.sparkContext.defaultParallelism)
        except Exception:
            return os.cpu_count() or 1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report and time a part of the work."""
        with self.report.phase(name), self.progress.phase(name):
            yield

    def staging(self, place: Path) -> Path:
        """Create a directory that is removed when the job ends, unless it was renamed.

        Raises `OSError`.
        """
        self.half_made(place)  # first, since an interrupt may come at any moment
        place.mkdir(parents=True)
        return place

    def half_made(self, place: Path) -> None:
        """Register a directory that is removed when the job ends, unless `keep` is called."""
        self._staging.append(place)

    def keep(self, place: Path) -> None:
        """Keep such a directory: it is complete."""
        self._staging.remove(place)

    def _take_interrupts(self) -> None:
        """Let Ctrl-C, and the signals that the command treats like it, end the job.

        Pyspark's own handler only cancels, and the error of the cancelled call may come first.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(signal.getsignal(number)):
                    signal.signal(number, self._interrupt)

    @contextmanager
    def _interrupts_deferred(self) -> Iterator[None]:
        """Defer the first Ctrl-C, and the signals treated like it, to the end of the block.

        A Java process that is abandoned while it starts Spark would run for ever, since it cannot
        be reached yet. A second signal is not deferred.
        """
        previous: dict[int, Any] = {}

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        def note(_number: int, _frame: object) -> None:
            self.interrupted = True
            restore()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(handler := signal.getsignal(number)):
                    previous[number] = handler
                    signal.signal(number, note)
        try:
            yield
        finally:
            restore()
        if self.interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.interrupted = True
        raise KeyboardInterrupt

    def until_closed(self, context: AbstractContextManager[None]) -> None:
        """Enter a context that is left after Spark has ended and incomplete output is removed."""
        self._contexts.enter_context(context)

    def close(self) -> None:
        """End Spark and remove incomplete output."""
        with self._contexts:
            if self._spark is not None and self._outer_spark is None:
                end_spark(self._spark)
                self._spark = None
            for place in self._staging:
                shutil.rmtree(place, ignore_errors=True)


def run_job(name: str, settings: JobSettings, work: Callable[[Job], None]) -> Report:
    """Do a job, and return its report with the exit code. Raises no expected error.

    A `KeyboardInterrupt` ends Spark and gives the code 130. The report is written to
    `settings.report` in every case.
    """
    job = Job(name, settings)
    report = job.report
    report.options = _reported_settings(settings)
    try:
        work(job)
    except KeyboardInterrupt:
        report.exit_code, report.error = EXIT_INTERRUPTED, "interrupted"
    except Exception as error:
        explained = explain(error)
        if job.interrupted:
            report.exit_code, report.error = EXIT_INTERRUPTED, "interrupted"
        elif explained is None:
            raise
        else:
            report.exit_code, report.error = explained.exit_code, str(explained)
    finally:
        _close_undisturbed(job)
    if settings.report is not None:
        try:
            report.save(settings.report)
        except OSError as error:
            report.exit_code = report.exit_code or Unwritable.exit_code
            report.error = report.error or f"the report cannot be written: {error}"
    return report


@contextmanager
def quiet_java(log: Path | None) -> Iterator[None]:
    """Redirect the standard error of processes that are started in the block to a file, or nowhere.

    Raises `OSError` if the file cannot be written.
    """
    target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stderr.flush()
    saved = os.dup(STDERR)
    try:
        os.dup2(target, STDERR)
        os.close(target)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, STDERR)
        os.close(saved)


def end_spark(spark: "SparkSession") -> None:
    """Stop a session and wait until its Java process has ended."""
    context = getattr(spark, "_sc", None)
    gateway = getattr(context, "_gateway", None)
    with suppress(Exception):  # the other side may have ended already
        spark.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        process.stdin.close()  # Java ends when its standard input does
    try:
        process.wait(JVM_END_S)
    except Exception:
        process.kill()
        process.wait()
    _forget_gateway()


def _forget_gateway() -> None:
    """Let a later session of this process start its own Java process."""
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None


def _close_undisturbed(job: Job) -> None:
    """Close the job even if a second Ctrl-C interrupts it."""
    try:
        job.close()
    except KeyboardInterrupt:
        job.close()


def _reported_settings(settings: JobSettings) -> dict[str, Any]:
    """Return the settings for a report: those that are set, secrets by their names only."""
    empty: tuple[object, ...] = ("", None, (), {}, False)
    reported = {key: value for key, value in asdict(settings).items() if value not in empty}
    if settings.conf:
        reported["conf"] = {
            name: "..." if _SECRET.search(name) else value for name, value in settings.conf.items()
        }
    return reported


def _all_versions(spark: "SparkSession") -> dict[str, str]:
    from rocketbed.pipeline.report import versions

    by_name = versions()
    with suppress(Exception):
        by_name["java"] = _java_version(spark)
    return by_name


def _java_version(spark: "SparkSession") -> str:
    """Return Java's version, without a query if possible: a session's first one takes seconds."""
    java = getattr(spark, "_jvm", None)
    if java is not None:
        return str(java.java.lang.System.getProperty("java.version"))
    row = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')")
    return str(row.collect()[0][0])
