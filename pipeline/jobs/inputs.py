"""What a job reads: replicas of brokers, how far their logs go, and how much that is."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.jobs.common import JobSettings, WrongUsage
from rocketbed.pipeline.report import Report

if TYPE_CHECKING:
    from rocketbed.pipeline.files.splits import Replica
    from rocketbed.pipeline.streams.queues import QueueLog
    from rocketbed.pipeline.wire.cluster import QueueSnapshot

REST_MS: Final = 4000
"""So long, at most, is asked at the end what was not read."""
COMPARED_MAX: Final = 16
"""So many logs are compared two by two, a read each."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One replica's log. Offsets in bytes from the start of the log."""

    replica: "Replica"
    start: int
    """First byte that is still there."""
    end: int
    """Behind its last whole record."""
    files: int
    bytes: int

    @property
    def label(self) -> str:
        return f"{self.replica.broker}/{self.replica.name}"

    @property
    def path(self) -> str:
        """As the data source's option `path`."""
        return f"{self.label}={self.replica.root}"

    @property
    def source(self) -> dict[str, str]:
        """As options of the data source."""
        return {"path": self.path, **dict(self.replica.storage.settings)}


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """The replicas of one broker, and what all of them hold."""

    broker: str
    replicas: tuple[ReplicaLog, ...]
    """By `start`: the first has all that any has, up to `end`."""
    start: int
    end: int
    """Confirmed: every replica holds the log up to here."""

    @property
    def path(self) -> str:
        """All replicas as the data source's option `path`."""
        return ",".join(log.path for log in self.replicas)


def broker_logs(settings: JobSettings) -> list[BrokerLog]:
    """The brokers of the stores that were named, sorted. Raises `PipelineError`, `WrongUsage`."""
    from rocketbed.pipeline.files.paths import parse_paths

    if settings.endpoints:
        raise WrongUsage("this job reads store directories: give --store DIR (repeatable)")
    if not settings.stores:
        raise WrongUsage("no input: give --store DIR (repeatable)")
    fs = settings.file_systems(*settings.stores)
    by_broker: dict[str, list[Replica]] = {}
    for replica in parse_paths(",".join(settings.stores), fs):
        by_broker.setdefault(replica.broker, []).append(replica)
    return [_broker_log(name, replicas) for name, replicas in sorted(by_broker.items())]


def distinct_logs(settings: JobSettings) -> list[BrokerLog]:
    """The same for jobs that count. Raises `WrongUsage` also where two brokers have one log, known
    by what is before its end: copies that were not named as replicas would count twice. Of many
    logs only those that end at one byte are compared."""
    from rocketbed.pipeline.streams.offsets import Mark
    from rocketbed.pipeline.streams.replicas import mark_at

    logs = broker_logs(settings)
    few = len(logs) <= COMPARED_MAX
    own: dict[str, Mark] = {}
    for log in logs:
        replica = log.replicas[0].replica
        for other in logs:
            theirs = other.replicas[0].replica
            if other is log or not log.start < other.end <= log.end:
                continue
            if not few and other.end != log.end:
                continue
            if other.broker not in own:
                own[other.broker] = mark_at(theirs, other.end)
            mark = own[other.broker]
            if mark.crc and mark == mark_at(replica, other.end):
                raise WrongUsage(
                    f"{theirs.root} and {replica.root} have one log, and would count as two"
                    f" brokers: give --store NAME/0={theirs.root} --store NAME/1={replica.root},"
                    f" or one of them"
                )
    return logs


@contextmanager
def live_log(settings: JobSettings, topics: Sequence[str], **given: str) -> "Iterator[QueueLog]":
    """The queues of the cluster that was named; `given`: more options. Raises `WrongUsage`."""
    from rocketbed.pipeline.options import Options
    from rocketbed.pipeline.streams.queues import QueueLog

    source = settings.source_options() | settings.topic_options(topics)
    log = QueueLog(Options.parse(source | given))
    try:
        yield log
    finally:
        log.close()


def note_queues(
    report: Report, settings: JobSettings, seen: "QueueSnapshot", *, longest: bool = False
) -> None:
    """Enter in the report which queues of a live cluster are read, and what of them is not, unless
    what any member has is."""
    note_unread(report, seen, longest=longest)
    report.inputs.append(
        {
            "endpoints": settings.endpoints,
            "topics": sorted({queue.topic for queue in seen.queues.values()}),
            "queues": len(seen.queues),
            "messages": sum(one.end - one.first for one in seen.bounds.values()),
        }
    )


def note_unread(report: Report, seen: "QueueSnapshot", *, longest: bool = False) -> None:
    """Enter in the report what of queues is not read, unless what any member has is, and which
    members did not answer."""
    from rocketbed.pipeline.wire.cluster import left_out, unanswered

    told = (unanswered(seen), "" if longest else left_out(seen))
    report.notes += [one for one in told if one]


def note_rest(report: Report, settings: JobSettings, topics: Sequence[str]) -> None:
    """The same of a live cluster at the end of a read that Spark did: what it warns of itself is
    in Spark's log. Raises `WrongUsage`."""
    try:
        with live_log(settings, topics, retryTimeoutMs=str(REST_MS)) as log:
            note_unread(report, log.look())
    except PipelineError as exc:
        report.notes.append(f"nobody knows what was not read: {exc}")


def sources_now(
    settings: JobSettings, report: Report, topics: Sequence[str]
) -> list[dict[str, str]]:
    """Options of reads of all that is stored now, and is the same in each of them: one for a
    broker's log, or one for a live cluster. They are noted. Raises `PipelineError`, `WrongUsage`.
    """
    asked = settings.topic_options(topics)
    if not settings.endpoints:
        logs = distinct_logs(settings)
        note_inputs(report, logs)
        common = asked | {"mode": settings.mode}
        return [common | log.replicas[0].source | {"endOffset": str(log.end)} for log in logs]
    seen = queues_now(settings, report, topics)
    ends = {name: bounds.end for name, bounds in seen.bounds.items()}
    return [asked | settings.source_options() | {"endingOffsets": json.dumps(ends)}]


def queues_now(
    settings: JobSettings, report: Report, topics: Sequence[str], *, longest: bool = False
) -> "QueueSnapshot":
    """The queues of a live cluster, noted. Raises `PipelineError`, `WrongUsage`."""
    with live_log(settings, topics) as log:
        seen = log.look()
    note_queues(report, settings, seen, longest=longest)
    return seen


def note_inputs(report: Report, logs: list[BrokerLog]) -> None:
    """Enter in the report what is read, and as findings what of it no read of records shows: bytes
    behind a log's end that no crash leaves there, and segments under other names."""
    from rocketbed.pipeline.files.replicas import log_files
    from rocketbed.pipeline.files.splits import used_files
    from rocketbed.pipeline.files.tails import misnamed, written_end

    report.inputs += [
        {
            "broker": log.broker,
            "replica": replica.replica.name,
            "path": str(replica.replica.root),
            "files": replica.files,
            "bytes": replica.bytes,
            "log_start": replica.start,
            "log_end": replica.end,
            "confirmed": log.end,
        }
        for log in logs
        for replica in log.replicas
    ]
    report.notes += [
        f"{replica.label} ends at {replica.end}, only {log.end} of it was read: what all"
        f" replicas of {log.broker} hold"
        for log in logs
        for replica in log.replicas
        if replica.end > log.end
    ]
    for each in (replica for log in logs for replica in log.replicas):
        found = [
            ("misnamed", f"{file.path} is a segment, not called {file.start:020d}: it was not read")
            for file in misnamed(each.replica, log_files(each.replica))
        ]
        size = written_end(each.replica, used_files(each.replica), each.end) - each.end
        if size:
            title = f"{each.path}: {size} bytes from {each.end} on are no record, or are gone"
            found.append(("unread", title))
        for what, title in found:
            report.findings.append({"id": what, "title": title, "count": 1})
            report.exit_code = EXIT_FINDING


def _broker_log(name: str, replicas: "list[Replica]") -> BrokerLog:
    from rocketbed.pipeline.files.splits import confirmed_end

    found = (_replica_log(replica) for replica in replicas)
    logs = tuple(sorted(found, key=lambda log: log.start))
    return BrokerLog(name, logs, logs[0].start, confirmed_end(replicas))


def _replica_log(replica: "Replica") -> ReplicaLog:
    from rocketbed.pipeline.files.replicas import first_offset
    from rocketbed.pipeline.files.splits import confirmed_end, log_files

    end = confirmed_end([replica])
    files = log_files(replica)
    return ReplicaLog(
        replica, first_offset(replica) or 0, end, len(files), sum(file.size for file in files)
    )
