"""Inputs of a job: replicas of brokers with the ranges and sizes of their logs."""

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
"""Timeout of the final question for messages that were not read."""
COMPARED_MAX: Final = 16
"""Maximum number of logs that are all compared in pairs, with a read for each pair."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The log of a replica. Offsets in bytes from the start of the log."""

    replica: "Replica"
    start: int
    """First byte that is still stored."""
    end: int
    """End of its last whole record."""
    files: int
    bytes: int

    @property
    def label(self) -> str:
        return f"{self.replica.broker}/{self.replica.name}"

    @property
    def path(self) -> str:
        """Value for the data source's option `path`."""
        return f"{self.label}={self.replica.root}"

    @property
    def source(self) -> dict[str, str]:
        """Options of the data source."""
        return {"path": self.path, **dict(self.replica.storage.settings)}


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """The replicas of a broker, and the range of the log that all of them hold."""

    broker: str
    replicas: tuple[ReplicaLog, ...]
    """Sorted by `start`: the first replica has the longest range up to `end`."""
    start: int
    end: int
    """Confirmed end: every replica holds the log up to here."""

    @property
    def path(self) -> str:
        """Value for the data source's option `path`, with all replicas."""
        return ",".join(log.path for log in self.replicas)


def broker_logs(settings: JobSettings) -> list[BrokerLog]:
    """Return the brokers of the stores in the settings, sorted.

    Raises `PipelineError`, `WrongUsage`.
    """
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
    """Return the same for jobs that count messages, which must not read a log twice.

    Raises `WrongUsage` also if two brokers have the same log, recognised by the bytes before its
    end: such copies have to be named as replicas. If there are many logs, only those with the same
    end are compared.
    """
    from rocketbed.pipeline.streams.offsets import Mark
    from rocketbed.pipeline.streams.replicas import mark_at

    logs = broker_logs(settings)
    few = len(logs) <= COMPARED_MAX
    own: dict[str, Mark] = {}
    for log in logs:
        replica = log.replicas[0].replica
        for shorter in logs:
            shorter_replica = shorter.replicas[0].replica
            if shorter is log or not log.start < shorter.end <= log.end:
                continue
            if not few and shorter.end != log.end:
                continue
            if shorter.broker not in own:
                own[shorter.broker] = mark_at(shorter_replica, shorter.end)
            mark = own[shorter.broker]
            if mark.crc and mark == mark_at(replica, shorter.end):
                raise WrongUsage(
                    f"{shorter_replica.root} and {replica.root} have one log, and would count as"
                    f" two brokers: give --store NAME/0={shorter_replica.root}"
                    f" --store NAME/1={replica.root}, or one of them"
                )
    return logs


@contextmanager
def live_log(settings: JobSettings, topics: Sequence[str], **options: str) -> "Iterator[QueueLog]":
    """Open the queues of the settings' cluster, with further `options`. Raises `WrongUsage`."""
    from rocketbed.pipeline.options import Options
    from rocketbed.pipeline.streams.queues import QueueLog

    source = settings.source_options() | settings.topic_options(topics)
    log = QueueLog(Options.parse(source | options))
    try:
        yield log
    finally:
        log.close()


def note_queues(
    report: Report, settings: JobSettings, state: "QueueSnapshot", *, longest: bool = False
) -> None:
    """Enter in the report the queues of a live cluster that are read, and what is not read of them.

    `longest`: each queue is read up to the longest member's end, so nothing is left unread.
    """
    note_unread(report, state, longest=longest)
    report.inputs.append(
        {
            "endpoints": settings.endpoints,
            "topics": sorted({queue.topic for queue in state.queues.values()}),
            "queues": len(state.queues),
            "messages": sum(bounds.end - bounds.first for bounds in state.bounds.values()),
        }
    )


def note_unread(report: Report, state: "QueueSnapshot", *, longest: bool = False) -> None:
    """Enter in the report the unread messages of queues, and the members that did not answer.

    `longest`: each queue is read up to the longest member's end, so nothing is left unread.
    """
    from rocketbed.pipeline.wire.cluster import left_out, unanswered

    notes = (unanswered(state), "" if longest else left_out(state))
    report.notes += [note for note in notes if note]


def note_unread_now(report: Report, settings: JobSettings, topics: Sequence[str]) -> None:
    """Do the same for a live cluster after Spark's read, whose own warnings are in Spark's log.

    Raises `WrongUsage`.
    """
    try:
        with live_log(settings, topics, retryTimeoutMs=str(REST_MS)) as log:
            note_unread(report, log.look())
    except PipelineError as exc:
        report.notes.append(f"what was not read is unknown: {exc}")


def sources_now(
    settings: JobSettings, report: Report, topics: Sequence[str]
) -> list[dict[str, str]]:
    """Return the options to read all that is stored now; repeated reads get the same messages.

    There are options for each broker's log, or once for a live cluster. Enters the inputs in the
    report. Raises `PipelineError`, `WrongUsage`.
    """
    topic_options = settings.topic_options(topics)
    if not settings.endpoints:
        logs = distinct_logs(settings)
        note_inputs(report, logs)
        common = topic_options | {"mode": settings.mode}
        return [common | log.replicas[0].source | {"endOffset": str(log.end)} for log in logs]
    state = queues_now(settings, report, topics)
    ends = {name: bounds.end for name, bounds in state.bounds.items()}
    return [topic_options | settings.source_options() | {"endingOffsets": json.dumps(ends)}]


def queues_now(
    settings: JobSettings, report: Report, topics: Sequence[str], *, longest: bool = False
) -> "QueueSnapshot":
    """Return the queues of a live cluster, and enter them in the report.

    Raises `PipelineError`, `WrongUsage`.
    """
    with live_log(settings, topics) as log:
        state = log.look()
    note_queues(report, settings, state, longest=longest)
    return state


def note_inputs(report: Report, logs: list[BrokerLog]) -> None:
    """Enter the inputs in the report, and as findings what a read of records does not reveal.

    These are bytes behind a log's end that no crash leaves, and segments with a wrong name.
    """
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
    for replica in (replica for log in logs for replica in log.replicas):
        findings = [
            ("misnamed", f"{file.path} is a segment, not called {file.start:020d}: it was not read")
            for file in misnamed(replica.replica, log_files(replica.replica))
        ]
        size = written_end(replica.replica, used_files(replica.replica), replica.end) - replica.end
        if size:
            title = f"{replica.path}: {size} bytes from {replica.end} on are no record, or are gone"
            findings.append(("unread", title))
        for finding, title in findings:
            report.findings.append({"id": finding, "title": title, "count": 1})
            report.exit_code = EXIT_FINDING


def _broker_log(name: str, replicas: "list[Replica]") -> BrokerLog:
    from rocketbed.pipeline.files.splits import confirmed_end

    replica_logs = (_replica_log(replica) for replica in replicas)
    logs = tuple(sorted(replica_logs, key=lambda log: log.start))
    return BrokerLog(name, logs, logs[0].start, confirmed_end(replicas))


def _replica_log(replica: "Replica") -> ReplicaLog:
    from rocketbed.pipeline.files.replicas import first_offset
    from rocketbed.pipeline.files.splits import confirmed_end, log_files

    end = confirmed_end([replica])
    files = log_files(replica)
    return ReplicaLog(
        replica, first_offset(replica) or 0, end, len(files), sum(file.size for file in files)
    )
