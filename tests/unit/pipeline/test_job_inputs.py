"""Stores that a job reads, and their brokers."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs import inputs
from rocketbed.pipeline.jobs.audit.job import AuditOptions, audit
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.export.job import ExportOptions, export
from rocketbed.pipeline.jobs.inputs import (
    COMPARED_MAX,
    broker_logs,
    distinct_logs,
    note_unread_now,
    queues_now,
    sources_now,
)
from rocketbed.pipeline.jobs.replay.job import ReplayOptions, _sources
from rocketbed.pipeline.jobs.retention.job import RetentionOptions, retention
from rocketbed.pipeline.jobs.tail.job import TailOptions, tail
from rocketbed.pipeline.report import Report
from rocketbed.pipeline.wire.cluster import QueueSnapshot
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import SEGMENT, STORE_MS, Log, Message


def store(root: Path, count: int, since_ms: int = STORE_MS) -> str:
    messages = [Message(store_ms=since_ms + number, body=b"m" * 200) for number in range(count)]
    return str(Log(root).append(messages).root)


def settings(*stores: str) -> JobSettings:
    return JobSettings(stores=stores)


@pytest.mark.parametrize("kept_bytes", [0, SEGMENT])
@pytest.mark.parametrize("longer", [0, 1, 30])
def test_copies_of_one_log_are_not_two_brokers(
    tmp_path: Path, longer: int, kept_bytes: int
) -> None:
    """Every message counted twice, and the audit said GOOD."""
    short_store, two = store(tmp_path / "r0/store", 40), store(tmp_path / "r1/store", 40 + longer)
    for at in range(0, kept_bytes, SEGMENT):
        Path(two, "commitlog", f"{at:020d}").unlink()
    pattern = (
        r"r[01]/store and .*r[01]/store have one log, .* --store NAME/0=.*/store --store NAME/1="
    )
    for stores in ((short_store, two), (two, short_store), (f"a/0={short_store}", f"b/0={two}")):
        with pytest.raises(WrongUsage, match=pattern):
            distinct_logs(settings(*stores))
        assert len(broker_logs(settings(*stores))) == 2
    (log,) = distinct_logs(settings(f"a/0={short_store}", f"a/1={two}"))
    assert len(log.replicas) == 2


def test_logs_of_two_brokers_are_two(tmp_path: Path) -> None:
    first_store, two = store(tmp_path / "a", 40), store(tmp_path / "b", 40, STORE_MS + 1)
    empty = str(Log(tmp_path / "c").root)
    Path(empty, "commitlog").mkdir(exist_ok=True, parents=True)
    shutil.copytree(empty, tmp_path / "d")
    logs = distinct_logs(settings(first_store, two, empty, str(tmp_path / "d")))
    assert [log.broker for log in logs] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("longest", [False, True])
def test_missing_messages_of_a_member_are_noted(
    longest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit of half of a cluster's messages was good, and said nothing."""
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    snapshot = QueueSnapshot({"b|T|0": queue}, {"b|T|0": QueueBounds(0, 40, 90, 2)})

    @contextmanager
    def live(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(look=lambda: snapshot)

    monkeypatch.setattr(inputs, "live_log", live)
    own, report = JobSettings(endpoints="h:1"), Report("audit")
    if longest:
        queues_now(own, report, (), longest=True)
        assert report.notes == []
        return
    (source,) = sources_now(own, report, ())
    assert source["endingOffsets"] == '{"b|T|0": 40}'
    assert report.notes == [
        "50 messages of 1 queues, b|T|0 the first, are not at every member that answered, and are"
        " not read: a replica is behind, or is another one's"
    ]


@pytest.mark.parametrize("longest", [False, True])
def test_members_that_do_not_answer_are_noted(
    longest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit said that there was nothing, and an export that nothing was new."""
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    snapshot = QueueSnapshot({"b|T|0": queue}, {"b|T|0": QueueBounds(0, 0, 0, 1, ("h:7",))})

    @contextmanager
    def live(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(look=lambda: snapshot)

    monkeypatch.setattr(inputs, "live_log", live)
    report = Report("audit")
    queues_now(JobSettings(endpoints="h:1"), report, (), longest=longest)
    assert report.notes == ["no answer from h:7 of b: what only it has is not read"]


def test_unread_queues_of_a_tail_are_noted_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It printed nothing, was good, and the warnings were in Spark's log."""
    options: dict[str, str] = {}

    def look() -> QueueSnapshot:
        if not bounds:
            raise PipelineError("no answer from h:1")
        return QueueSnapshot({}, bounds)

    @contextmanager
    def live(*_: object, **more: str) -> Iterator[SimpleNamespace]:
        options.update(more)
        yield SimpleNamespace(look=look)

    monkeypatch.setattr(inputs, "live_log", live)
    bounds = {"b|T|0": QueueBounds(0, 40, 90, 2, ("h:7",))}
    report = Report("tail")
    note_unread_now(report, JobSettings(endpoints="h:1"), ())
    assert options == {"retryTimeoutMs": "4000"}
    assert [note[:26] for note in report.notes] == [
        "no answer from h:7 of b: w",
        "50 messages of 1 queues, b",
    ]
    assert report.inputs == []
    bounds = {}
    note_unread_now(report, JobSettings(endpoints="h:1"), ())
    assert report.notes[2:] == ["what was not read is unknown: no answer from h:1"]


def test_logs_with_equal_ends_are_compared(tmp_path: Path) -> None:
    """Two by two would be a read of each for each: 40,000 for 200 brokers."""
    roots = [store(tmp_path / f"b{at}", 1 + at, STORE_MS + at) for at in range(COMPARED_MAX)]
    equal = store(tmp_path / "equal", 2, STORE_MS + 1)
    longer = store(tmp_path / "longer", 3, STORE_MS + 1)
    assert len(distinct_logs(settings(*roots, longer))) == COMPARED_MAX + 1
    with pytest.raises(WrongUsage, match=r"/(b1|equal) and .*/(b1|equal) have one log"):
        distinct_logs(settings(*roots, equal))


def test_jobs_that_count_refuse_copies(tmp_path: Path) -> None:
    copies = store(tmp_path / "r0/store", 4), store(tmp_path / "r1/store", 4)
    out = tmp_path / "out"

    def job(name: str) -> Job:
        return Job(name, JobSettings(stores=copies, out=out))

    for run in (
        lambda: audit(job("audit"), AuditOptions()),
        lambda: export(job("export"), ExportOptions()),
        lambda: tail(job("tail"), TailOptions(), print),
        lambda: _sources(job("replay"), ReplayOptions(target="h:1")),
        lambda: retention(job("retention"), RetentionOptions()),
    ):
        with pytest.raises(WrongUsage, match="have one log"):
            run()
    assert not out.exists()
