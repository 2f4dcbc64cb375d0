"""The next part to export of a cluster's queues, or of a log, also after a killed run."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage, run_job
from rocketbed.pipeline.jobs.export import new as module
from rocketbed.pipeline.jobs.export.manifest import Manifest, Part
from rocketbed.pipeline.jobs.export.new import new_log_parts, new_queue_parts
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.jobs.inputs import BrokerLog, broker_logs
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import QUEUE, StreamOffset, topic_of
from rocketbed.pipeline.streams.queues import QueueLog
from rocketbed.pipeline.wire.cluster import QueueSnapshot
from rocketbed.pipeline.wire.log import RawPull
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import Log, Message

Bounds = Mapping[str, tuple[int, int]]
A, B = "a|T|0", "b|T|0"


class Wire:
    """A cluster whose records are made of their offsets, and of what it is."""

    def __init__(self, kind: bytes) -> None:
        self.kind = kind

    def distrust(self, topic: str) -> None:
        """Routes are always right here."""

    async def pull(self, queue: MessageQueue, at: int, count: int = 1) -> RawPull:
        record = (12).to_bytes(4, "big") + self.kind + at.to_bytes(4, "big")
        return RawPull(records=record, next_offset=at + 1, first=0, end=10**9, broker_id=0)


def cluster(bounds: Bounds, kind: bytes = b"same", *, more: int = 0) -> QueueLog:
    """Queues from a first offset to an end, the same at all members but one that has more."""
    log = QueueLog(Options.parse({"endpoints": "h:1", "retryTimeoutMs": "50"}))
    queues = {
        name: MessageQueue(topic=topic_of(name), broker_name=name[0], queue_id=0) for name in bounds
    }
    snapshot = QueueSnapshot(
        queues, {name: QueueBounds(low, high, high + more) for name, (low, high) in bounds.items()}
    )

    async def look(_log: Any, *, fresh: bool = False) -> QueueSnapshot:
        return snapshot

    def call(question: Callable[[Any], Awaitable[Any]]) -> Any:
        return trio.run(question, Wire(kind))

    log._cluster.look = look  # type: ignore[method-assign, assignment]
    log._log = SimpleNamespace(call=call, close=lambda: None)  # type: ignore[assignment]
    return log


def run(out: Path, log: QueueLog, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, list[Part]]:
    """Run an export; return the parts that it would have written."""

    @contextmanager
    def live(*_: object) -> Iterator[QueueLog]:
        yield log

    monkeypatch.setattr(module, "live_log", live)
    job = Job("export", JobSettings(endpoints="h:1"))
    parts_begun = []
    manifest = opened(out)
    for new in new_queue_parts(job, manifest, ()):
        manifest.begin(new.part)
        manifest.end(new.part)
        parts_begun.append(new.part)
    return job, parts_begun


def opened(out: Path) -> Manifest:
    return Manifest(Place.of(str(out), ()), {"source": "queues"})


def pend(out: Path, ends: Mapping[str, int], kind: bytes = b"same") -> None:
    """Leave a pending part, as a run that was killed while writing."""
    log = cluster({name: (0, end) for name, end in ends.items()}, kind)
    job = Job("export", JobSettings(endpoints="h:1"))
    begin, end = module._next_offsets(job, log, StreamOffset(QUEUE, {}))
    opened(out).begin(Part("part=queues-0", begin_at=begin.as_json(), end_at=end.as_json()))


def ends(part: Part) -> dict[str, int]:
    marks = StreamOffset.parse(part.end_at, QUEUE, where="").marks
    return {name: mark.at for name, mark in marks.items()}


def test_queue_away_during_a_rewrite_is_exported_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as exported up to its end."""
    pend(tmp_path, {A: 100, B: 100})
    job, parts = run(tmp_path, cluster({A: (0, 100)}), monkeypatch)
    assert [ends(part) for part in parts] == [{A: 100}]
    assert [one["id"] for one in job.report.findings] == ["left_out"]
    assert job.report.exit_code == 1
    job, parts = run(tmp_path, cluster({A: (0, 100), B: (0, 130)}), monkeypatch)
    assert [ends(part) for part in parts] == [{B: 130}]
    assert job.report.exit_code == 0


@pytest.mark.parametrize("more", [0, 99, 100])
def test_missing_messages_of_a_member_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    job, parts = run(tmp_path, cluster({A: (0, 900), B: (0, 900)}, more=more), monkeypatch)
    assert [ends(part) for part in parts] == [{A: 900, B: 900}]
    assert len(job.report.notes) == (more >= 100)
    for note in job.report.notes:
        assert note.startswith(f"200 messages of 2 queues, {A} the first, are not at every member")


def test_part_without_its_queues_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pend(tmp_path, {A: 100})
    with pytest.raises(PipelineError, match="none of the queues of part=queues-0"):
        run(tmp_path, cluster({B: (0, 10)}), monkeypatch)
    assert [part.name for part in opened(tmp_path).pending] == ["part=queues-0"]


def test_queues_of_a_namesake_topic_stay_out_of_an_old_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pend(tmp_path, {A: 100})
    with pytest.raises(PipelineError, match="was recreated, or it is another cluster"):
        run(tmp_path, cluster({A: (0, 500)}, b"anew"), monkeypatch)
    with pytest.raises(PipelineError, match="ends at 60, and part=queues-0 at 100"):
        run(tmp_path, cluster({A: (0, 60)}), monkeypatch)


def test_shrunk_queue_is_reported_beside_a_healthy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, parts = run(tmp_path, cluster({A: (0, 100), B: (0, 100)}), monkeypatch)
    assert [ends(part) for part in parts] == [{A: 100, B: 100}]
    with pytest.raises(PipelineError, match=r"lost messages that was exported.*it ends at 50"):
        run(tmp_path, cluster({A: (0, 50), B: (0, 200)}), monkeypatch)


def test_deletion_before_a_rewrite_is_reported(tmp_path: Path) -> None:
    job = Job("export", JobSettings(stores=("x",)))
    log = BrokerLog("b", (SimpleNamespace(source={}),), 60, 100)  # type: ignore[arg-type]
    manifest = Manifest(Place.of(str(tmp_path), ()), {"source": "logs"})
    manifest.begin(Part("part=b-0-100", "b", 0, 100))
    written = []
    for new in new_log_parts(job, manifest, [log]):
        manifest.end(new.part)
        written.append(new.part.name)
    assert written == ["part=b-0-100"]
    assert [one["title"] for one in job.report.findings] == [
        "b: 0 to 60 were deleted before they were exported"
    ]


def test_renamed_log_is_not_exported_again(tmp_path: Path) -> None:
    """A directory without a name gets another one when a second one is added: its rows were
    exported twice.
    """
    roots = [str(Log(tmp_path / name / "store").append([Message()]).root) for name in "ab"]
    (out := tmp_path / "out").mkdir()

    def parts(*stores: str) -> list[str]:
        job = Job("export", JobSettings(stores=stores))
        manifest = Manifest(Place.of(str(out), ()), {"source": "logs"})
        brokers = []
        for new in new_log_parts(job, manifest, broker_logs(job.settings)):
            manifest.begin(new.part)
            manifest.end(new.part)
            brokers.append(new.part.broker)
        return brokers

    assert parts(roots[0]) == ["store"]
    with pytest.raises(WrongUsage, match=f"{roots[0]} was exported as broker store, .* --store st"):
        parts(*roots)
    assert parts(f"store={roots[0]}", f"b={roots[1]}") == ["b"]


def test_concurrent_rewrite_of_a_part_is_noticed(tmp_path: Path) -> None:
    """Without a lock, one entered as complete what the other had removed."""
    part = Part("part=queues-0", begin_at={}, end_at={})
    opened(tmp_path).begin(part)
    first, second = opened(tmp_path), opened(tmp_path)
    first.begin(part)
    with pytest.raises(PipelineError, match="was changed by another export"):
        second.begin(part)
    third = opened(tmp_path)
    third.begin(part)
    with pytest.raises(PipelineError, match="was changed by another export"):
        first.end(part)


def test_no_second_export_before_a_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a killed job removed files of the next one."""
    place = Place.of(str(tmp_path), ())
    events = []

    def end_spark(_spark: object) -> None:
        with pytest.raises(WrongUsage, match="another export is writing"), place.locked():
            events.append("locked")
        events.append("ended")

    def work(job: Job) -> None:
        job.until_closed(place.locked())
        job._spark = object()  # type: ignore[assignment]
        raise KeyboardInterrupt

    monkeypatch.setattr("rocketbed.pipeline.jobs.common.end_spark", end_spark)
    assert run_job("export", JobSettings(stores=("x",)), work).exit_code == 130
    assert events == ["ended"]
    with place.locked():
        pass
