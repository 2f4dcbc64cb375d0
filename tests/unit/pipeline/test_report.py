"""Reports, progress and errors of jobs, without Spark."""

import io
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketbed.cli.interrupts import Interruptible
from rocketbed.cli.main import main
from rocketbed.cli.pipeline.options import summary
from rocketbed.host.extras import install_command
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage, quiet_java, run_job
from rocketbed.pipeline.jobs.failures import explain, explain_text, first_sentence
from rocketbed.pipeline.progress import Progress, count_tasks
from rocketbed.pipeline.report import Report, write_whole

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/pipeline/files/decode.py", line 9, in read
    raise RocketbedCorrupt(path, 4, "bad_magic")
{name}: /s/commitlog/0: no record at physical offset 4: bad_magic
 SQLSTATE: 38000
"""


class Captured(Exception):
    """Stands for what pyspark raises."""

    __module__ = "pyspark.errors.exceptions.captured"
    _cause: Exception | None = None


def does(action: Callable[[Job], None]) -> Callable[[Job], None]:
    return action


def raising(error: BaseException) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        raise error

    return work


def test_a_report_tells_what_was_done(tmp_path: Path) -> None:
    def work(job: Job) -> None:
        with job.phase("counting"):
            job.report.counts["rows"] = 3
        job.report.findings.append({"id": "V1", "title": "lost", "count": 1})
        job.report.exit_code = 1

    path = tmp_path / "new" / "report.json"
    settings = JobSettings(stores=("/s",), report=path)
    report = run_job("count", settings, work)
    row = json.loads(path.read_text())
    assert (row["job"], row["verdict"], row["exit_code"]) == ("count", "finding", 1)
    assert list(row["phases"]) == ["counting"]
    assert row["counts"] == {"rows": 3}
    assert row["options"]["stores"] == ["/s"]
    assert row["versions"]["pyspark"].startswith("4.")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]
    assert "FINDING V1 lost: 1" in summary(report)


@pytest.mark.parametrize(
    ("error", "code", "word", "text"),
    [
        (PipelineError("no log there"), 3, "unreadable", "no log there"),
        (WrongUsage("say where"), 64, "usage", "say where"),
        (FileNotFoundError(2, "No such file", "/s/x"), 3, "unreadable", "No such file: /s/x"),
        (OSError(28, "It is full", "/s/x"), 5, "unwritable", "cannot write to /s/x: It is full"),
        (Captured("Job aborted\n\tat org.apache"), 4, "spark-failed", "Spark failed: Job aborted"),
        (
            ModuleNotFoundError("no numpy", name="numpy"),
            4,
            "spark-failed",
            f"numpy is not installed: {install_command('spark')}",
        ),
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
    ],
)
def test_expected_failure_ends_with_a_sentence_and_a_code(
    tmp_path: Path, error: BaseException, code: int, word: str, text: str
) -> None:
    report = run_job("j", JobSettings(report=tmp_path / "r.json"), raising(error))
    assert (report.exit_code, report.verdict, report.error) == (code, word, text)
    assert json.loads((tmp_path / "r.json").read_text())["error"] == text


def test_a_defect_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_job("j", JobSettings(), raising(ZeroDivisionError()))
    assert explain(KeyError("x")) is None


def test_unwritable_report_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report = run_job("j", JobSettings(report=tmp_path / "file" / "r.json"), lambda job: None)
    assert (report.exit_code, report.verdict) == (5, "unwritable")
    assert report.error.startswith("the report cannot be written")


@pytest.mark.parametrize(
    ("text", "code", "expected_text"),
    [
        (
            TRACEBACK.format(name="rocketbed.pipeline.files.corrupt.RocketbedCorrupt"),
            3,
            "/s/commitlog/0: no record",
        ),
        (TRACEBACK.format(name="rocketbed.pipeline.options.OptionError"), 64, "/s/commitlog/0"),
        (TRACEBACK.format(name="ValueError"), 4, "Spark failed: ValueError: /s/commitlog/0: no"),
        ("java.lang.OutOfMemoryError: Java heap space", 4, "--conf spark.driver.memory"),
        ("Python worker exited unexpectedly (crashed)", 4, "an executor ended"),
        (
            "[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03",
            4,
            "Path does not exist: /x.",
        ),
        ("\n\tat org.x\n", 4, "it gave no reason"),
        (
            "Lost task 1.3 in stage 0.0 (TID 8) (10.0.0.2 executor 2): java.io.IOException: Cannot"
            ' run program "/home/me/bin/python": error=2',
            4,
            "set PYSPARK_PYTHON to what they all have (on 10.0.0.2)",
        ),
        (
            "Lost task 0.0 in stage 0.0 (TID 0) (vm executor driver): Traceback\n"
            "ModuleNotFoundError: No module named 'rocketbed'\n",
            4,
            "no module rocketbed: install it on all machines, or give --archive FILE",
        ),
    ],
)
def test_texts_of_spark_become_sentences(text: str, code: int, expected_text: str) -> None:
    error = explain_text("PythonException", text)
    assert (error.exit_code, expected_text in str(error)) == (code, True)
    assert "\n" not in str(error)
    assert "SQLSTATE" not in first_sentence(text)


def caused(text: str, *causes: str) -> Captured:
    error = Captured(text)
    if causes:
        error._cause = caused(*causes)
    return error


@pytest.mark.parametrize(
    ("error", "expected_text"),
    [
        (
            Captured("Task failed\nOSError: [Errno 28] No space left on device\n"),
            "cannot write to the output, or to Spark's own files (spark.local.dir): No space left",
        ),
        (
            Captured("[TASK_WRITE_FAILED] Task failed while writing rows to file:/t/e/part=a.; No"
                     " space left on device"),
            "cannot write to /t/e/part=a: No space left on device",
        ),
        (caused("[STREAM_FAILED] writing rows to file:/t/p. SQLSTATE: 58030", "[TASK_WRITE_FAILED]",
                "java.io.IOException: No space left on device"),
         "cannot write to /t/p: No space left on device"),
    ],
    ids=["rebuild", "export", "tail"],
)  # fmt: skip
def test_full_disk_under_a_task_is_no_spark_failure(
    error: BaseException, expected_text: str
) -> None:
    report = run_job("j", JobSettings(), raising(error))
    assert (report.exit_code, report.verdict) == (5, "unwritable")
    assert report.error.startswith(expected_text)


def test_job_reports_our_errors_without_their_class() -> None:
    text = TRACEBACK.format(name="rocketbed.pipeline.files.corrupt.RocketbedCorrupt")
    named = text.replace("Corrupt: ", "Corrupt: [ROCKETBED_CORRUPT_RECORD] ")
    assert named != text
    assert str(explain_text("PythonException", named)).startswith("/s/commitlog/0: no record")


def test_a_staging_directory_goes_unless_it_was_renamed(tmp_path: Path) -> None:
    def work(job: Job) -> None:
        job.staging(tmp_path / "half" / "made")
        job.staging(tmp_path / "whole").rename(tmp_path / "kept")
        raise KeyboardInterrupt

    assert run_job("j", JobSettings(), work).exit_code == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "kept"]
    assert list((tmp_path / "half").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_becomes_an_interrupt(number: signal.Signals) -> None:
    """Raised within a call of Spark's it comes out as an error of that call."""

    def work(job: Job) -> None:
        job._take_interrupts()
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            raise ConnectionError("Java ended") from None

    before = signal.getsignal(signal.SIGINT)
    try:
        with Interruptible():
            report = run_job("j", JobSettings(), work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (report.exit_code, report.error) == (130, "interrupted")


def test_without_a_terminal_a_phase_is_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    with progress.phase("reading"):
        pass
    assert stream.getvalue() == "reading ...\n"


def test_terminal_shows_counts_and_times_of_phases() -> None:
    stream = io.StringIO()
    progress = Progress(stream, live=True)
    with pytest.raises(ValueError, match="x"), progress.phase("failing"):
        raise ValueError("x")
    assert "failing:" not in stream.getvalue()
    with progress.phase("reading"):
        progress.say("a line between")
    assert "a line between\n" in stream.getvalue()
    assert "reading: 0.0 s\n" in stream.getvalue()


def test_tasks_of_running_stages_are_counted() -> None:
    class Stage:
        numCompletedTasks, numTasks = 3, 10

    class Tracker:
        def __init__(self, *stages: int) -> None:
            self.stages = stages

        def getActiveStageIds(self) -> tuple[int, ...]:
            return self.stages

        def getStageInfo(self, number: int) -> Any:
            return None if number == 0 else Stage

    assert count_tasks(Tracker(0, 1, 2)) == "6/20 tasks"
    assert count_tasks(Tracker()) == ""


def test_a_file_is_put_in_place_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, "one")
    write_whole(path, "two")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("a", "two")]


def test_java_output_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import os

    with quiet_java(tmp_path / "log"):
        os.write(2, b"noise\n")
    os.write(2, b"ours\n")
    assert (tmp_path / "log").read_text() == "noise\n"
    assert capfd.readouterr().err == "ours\n"


def test_settings_name_what_to_read_once() -> None:
    with pytest.raises(WrongUsage, match="--store DIR"):
        JobSettings().source_options()
    with pytest.raises(WrongUsage, match="--store DIR"):
        JobSettings(stores=("/s",), endpoints="n:1").source_options()
    assert JobSettings(stores=("/s", "/t")).source_options()["path"] == "/s,/t"
    assert Report("x").verdict == "good"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("export", "no output: give --out DIR"),
        ("export --out /tmp/nowhere", "--store DIR"),
        ("export --store /s --out /tmp/x --conf nonsense", "KEY=VALUE"),
        ("export --store /s --out /tmp/x --mode maybe", "--mode"),
        ("verify", "--store DIR"),
        ("verify --run / --store /s", "excludes --store"),
        ("verify --store /s --leader b1", "BROKER=REPLICA"),
        ("verify --store /s --copies 0", "--copies"),
        ("retention --endpoints 127.0.0.1:1", "No such option"),
        ("sideways", "No such command"),
    ],
)
def test_wrong_usage(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", *words.split()]) == 64
    assert reason in capsys.readouterr().err


def test_report_contains_no_secret() -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "hidden", "spark.executor.memory": "1g"}
    settings = JobSettings(stores=("/s",), conf=conf)
    report = run_job("test", settings, lambda _: None)
    assert report.options["conf"] == {
        "spark.hadoop.fs.s3a.secret.key": "...",
        "spark.executor.memory": "1g",
    }
