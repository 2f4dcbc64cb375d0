"""New parts of an export: ranges of logs or of a cluster's queues, and the options to read them."""

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.export.manifest import Manifest, Part
from rocketbed.pipeline.jobs.inputs import BrokerLog, live_log, note_queues
from rocketbed.pipeline.streams.offsets import QUEUE, DataLoss, Mark, StreamError, StreamOffset
from rocketbed.pipeline.streams.queues import QueueLog


class NewPart(NamedTuple):
    part: Part
    source: dict[str, str]
    """Options of the read."""
    label: str
    """Name for messages to the user."""


News = Generator[NewPart, None, None]


def new_log_parts(job: Job, manifest: Manifest, logs: Sequence[BrokerLog]) -> News:
    """Yield the new parts of these logs; each has to be in the manifest before the next step.

    Raises `PipelineError`, `WrongUsage`.
    """
    check_names(manifest, logs)
    for log in logs:
        for part in [part for part in manifest.pending if part.broker == log.broker]:
            check_same(log, part)
            if part.start < log.start:
                note_deleted(job, f"{log.broker}: {part.start} to {min(log.start, part.end)}")
            yield _log_part(job, log, part)
        new_range = next_range(manifest.parts, log)
        if new_range is None:
            job.report.notes.append(f"{log.broker}: already exported up to {log.end}; nothing new")
            continue
        start, end = new_range
        ends = [part.end for part in manifest.parts if part.broker == log.broker]
        if ends and max(ends) < start:
            note_deleted(job, f"{log.broker}: {max(ends)} to {start}")
        name = f"part={quote(log.broker, safe='')}-{start}-{end}"
        yield _log_part(job, log, Part(name, log.broker, start, end, mark=mark_of(log, end)))


def new_queue_parts(job: Job, manifest: Manifest, topics: Sequence[str]) -> News:
    """Yield the new parts of a live cluster's queues. Raises `PipelineError`, `WrongUsage`."""
    common = job.settings.source_options() | job.settings.topic_options(topics)
    with live_log(job.settings, topics) as log:
        note_queues(job.report, job.settings, log.look())
        for part in [part for part in manifest.pending if part.end_at is not None]:
            begin, end = _resumed_offsets(job, log, part)
            resumed = replace(part, begin_at=begin.as_json(), end_at=end.as_json())
            yield _queues_part(resumed, begin, end, common)
        begin, end = _next_offsets(job, log, _exported(manifest.parts))
        if not end.marks:
            job.report.notes.append("already exported up to the end of all queues; nothing new")
            return
        number = sum(part.end_at is not None for part in manifest.parts)
        part = Part(f"part=queues-{number}", begin_at=begin.as_json(), end_at=end.as_json())
        yield _queues_part(part, begin, end, common)


def next_range(parts: Sequence[Part], log: BrokerLog) -> tuple[int, int] | None:
    """Return the byte range of a broker's log that is not exported yet, or None.

    Raises `PipelineError` if the log ends before the exported range, or has other bytes there: it
    is another log.
    """
    ours = [part for part in parts if part.broker == log.broker]
    last = max(ours, key=lambda part: part.end, default=None)
    if last is not None:
        check_same(log, last)
    start = max(log.start, last.end if last else 0)
    return (start, log.end) if start < log.end else None


def check_names(manifest: Manifest, logs: Iterable[BrokerLog]) -> None:
    """Raise `WrongUsage` for a log that was exported under another name.

    All of it would be exported again. A directory without a name gets another one when more
    directories are listed.
    """
    names = {log.broker for log in logs}
    parts = [*manifest.parts, *manifest.pending]
    brokers = {part.broker for part in parts}
    for log in (log for log in logs if log.broker not in brokers):
        candidates = [part for part in parts if part.broker not in names and part.end <= log.end]
        last = {part.broker: part for part in sorted(candidates, key=lambda part: part.end)}
        for part in last.values():
            if part.mark and mark_of(log, part.end) == part.mark:
                root = log.replicas[0].replica.root
                raise WrongUsage(
                    f"{root} was exported as broker {part.broker}, and is called {log.broker} now:"
                    f" give --store {part.broker}={root}, or another --out"
                )


def check_same(log: BrokerLog, part: Part) -> None:
    """Raise `PipelineError` if a part was exported from another log."""
    problem = ""
    if log.end < part.end:
        problem = f"ends at {log.end}, and {part.end} bytes of it were exported"
    elif part.mark and mark_of(log, part.end) not in (0, part.mark):
        problem = f"has other bytes before {part.end} than those that were exported"
    if problem:
        raise PipelineError(
            f"the log of {log.broker} {problem}: this is another log, or one that lost its end;"
            " give another --out"
        )


def mark_of(log: BrokerLog, end: int) -> int:
    from rocketbed.pipeline.streams.replicas import mark_at

    return mark_at(log.replicas[0].replica, end).crc


def note_deleted(job: Job, messages: str) -> None:
    """Add a finding: messages were deleted before they were exported."""
    title = f"{messages} were deleted before they were exported"
    job.report.findings.append({"id": "deleted", "title": title, "count": 1})
    job.report.exit_code = EXIT_FINDING


def _log_part(job: Job, log: BrokerLog, part: Part) -> NewPart:
    source = {
        **log.replicas[0].source,  # up to `end` all replicas are equal
        "startOffset": str(part.start),
        "endOffset": str(part.end),
        "mode": job.settings.mode,
    }
    return NewPart(part, source, f"{log.broker} {part.start} to {part.end}")


def _queues_part(
    part: Part, begin: StreamOffset, end: StreamOffset, common: dict[str, str]
) -> NewPart:
    ends = {name: mark for name, mark in end.marks.items() if name in begin.marks}
    source = {
        **common,
        "startingOffsets": json.dumps({name: mark.at for name, mark in begin.marks.items()}),
        "endingOffsets": json.dumps({name: mark.at for name, mark in ends.items()}),
    }
    return NewPart(part, source, f"{len(ends)} queues")


def _offset(part: Part, row: Any) -> StreamOffset:
    return StreamOffset.parse(row, QUEUE, where=f"the manifest's {part.name}")


def _exported(parts: Iterable[Part]) -> StreamOffset:
    """Return the end of the exported range of each queue."""
    marks: dict[str, Mark] = {}
    for part in parts:
        if part.end_at is not None:
            marks |= _offset(part, part.end_at).marks
    return StreamOffset(QUEUE, marks)


def _resumed_offsets(job: Job, log: QueueLog, part: Part) -> tuple[StreamOffset, StreamOffset]:
    """Return start and end of the queues of a pending part, without queues that are missing now.

    These are exported once they are back. Raises `PipelineError`.
    """
    begin, end = _offset(part, part.begin_at), _offset(part, part.end_at)
    state = log.look_until({name: mark.at for name, mark in end.marks.items()})
    for name, mark in end.marks.items():
        if name in state.bounds and state.bounds[name].longest < mark.at:
            problem = f"{name} ends at {state.bounds[name].longest}, and {part.name} at {mark.at}"
            raise PipelineError(
                f"{problem}: it lost its end, or is another one; give another --out"
            )
    with _cluster_errors(job):
        log.compare(end, state)
    missing = sorted(end.marks.keys() - state.bounds.keys())
    if len(missing) == len(end.marks):
        raise PipelineError(f"none of the queues of {part.name}, which was begun before, is there")
    if missing:
        title = (
            f"{missing[0]} and {len(missing) - 1} other queues are not there: what {part.name} was"
        )
        title += " to have of them is not exported before they are back"
        job.report.findings.append({"id": "left_out", "title": title, "count": len(missing)})
        job.report.exit_code = EXIT_FINDING
    ends = {name: mark for name, mark in end.marks.items() if name not in missing}
    begins = {name: mark for name, mark in begin.marks.items() if name not in missing}
    return _readable_marks(job, log, StreamOffset(QUEUE, begins)), StreamOffset(QUEUE, ends)


@contextmanager
def _cluster_errors(job: Job) -> Iterator[None]:
    """Turn stream errors (another cluster, queues that lost messages) into `PipelineError`."""
    try:
        yield
    except StreamError as error:
        problem = "lost messages" if isinstance(error, DataLoss) else "is not the one"
        raise PipelineError(
            f"the cluster at {job.settings.endpoints} {problem} that was exported: {error}; give"
            " another --out",
            error.condition,
        ) from error


def _readable_marks(job: Job, log: QueueLog, begin: StreamOffset) -> StreamOffset:
    """Drop missing queues, and move offsets up to the first message of a queue; report both."""
    bounds = log.look().bounds
    marks: dict[str, Mark] = {}
    missing = sorted(begin.marks.keys() - bounds.keys())
    if missing:
        more = f" and {len(missing) - 1} other queues" if len(missing) > 1 else ""
        job.report.notes.append(f"{missing[0]}{more}: not there now; what was exported of it stays")
    for name, mark in begin.marks.items():
        if name in bounds and mark.at < bounds[name].first:
            note_deleted(job, f"{name}: messages {mark.at} to {bounds[name].first}")
            marks[name] = Mark(bounds[name].first)
        elif name in bounds:
            marks[name] = mark
    return StreamOffset(QUEUE, marks)


def _next_offsets(
    job: Job, log: QueueLog, exported: StreamOffset
) -> tuple[StreamOffset, StreamOffset]:
    """Return start and end of the queues with new messages. Raises `PipelineError`."""
    start = _readable_marks(job, log, exported)
    firsts = {name: bounds.first for name, bounds in log.look().bounds.items()}
    log.freeze()
    latest = start
    with _cluster_errors(job):
        # Repeat until nothing moves: a queue that advances hides one that cannot.
        while (
            reachable := log.latest(latest, bytes_max=None, rows_max=None)
        ).marks != latest.marks:
            latest = reachable
    begins = {name: start.marks.get(name, Mark(firsts.get(name, 0))) for name in latest.marks}
    new = [name for name, mark in latest.marks.items() if begins[name].at < mark.at]
    return (
        StreamOffset(QUEUE, {name: begins[name] for name in new}),
        StreamOffset(QUEUE, {name: latest.marks[name] for name in new}),
    )
