"""Check names, lengths, gaps and kinds of the files, and strays among them.

RocketMQ refuses to start when a segment's length is not the configured one or a stray file is in
the directory (store.md 1.2), so these matter even if every message can be read.
"""

import os

from rocketbed.inspect.consumequeue import BATCH_UNIT, UNIT
from rocketbed.inspect.directory import StoreDirectory
from rocketbed.inspect.files import NAME_SIZE, NO_FILE, SegmentFile
from rocketbed.inspect.findings import HEAL, REBUILD, Findings, Severity
from rocketbed.inspect.index import HEADER
from rocketbed.inspect.marks import CKPT_NAME, FLUSHED_NAME

_MOVE = "move the file out of this directory; RocketMQ refuses to start beside it"


def check_files(directory: StoreDirectory, findings: Findings) -> None:
    """Check names and lengths of all segments, and look for gaps and stray files between them."""
    if not directory.log.segments:
        # If nothing had been synced, a power loss leaves queues without files.
        queues = (*directory.queues.values(), *directory.batch_queues.values())
        findings.add(
            "log-files-tile",
            Severity.DAMAGE if any(queue.segments for queue in queues) else Severity.NOTE,
            "commitlog",
            "there is no commit log segment",
            advice="take the log from a replica or a backup; without it no message can be read",
        )
    _check_row(directory, directory.log.segments, directory.sizes.segment, findings, log=True)
    for queue in directory.queues.values():
        size = directory.sizes.queue_segment
        _check_row(directory, queue.segments, size, findings, unit=UNIT.size)
    for batch_queue in directory.batch_queues.values():
        size = directory.sizes.batch_queue_segment
        _check_row(directory, batch_queue.segments, size, findings, unit=BATCH_UNIT.size)
    for stray in directory.log_strays + directory.queue_strays:
        text = f"not a segment: its name is no offset of {NAME_SIZE} digits"
        if not os.path.isfile(stray):
            text = f"not a segment: {NO_FILE}, or a link that leads nowhere"
        findings.add("sizes", Severity.DAMAGE, directory.relative(stray), text, advice=_MOVE)
    _check_index_files(directory, findings)
    _check_own_names(directory, findings)
    _check_kinds(directory, findings)


def _check_row(
    directory: StoreDirectory,
    segments: tuple[SegmentFile, ...],
    size: int,
    findings: Findings,
    *,
    unit: int = 1,
    log: bool = False,
) -> None:
    for number, segment in enumerate(segments):
        file = directory.relative(segment.path)
        _check_length(segment, size, file, findings, last=number + 1 == len(segments))
        if segment.start % size or segment.start % unit:
            text = f"a segment at {segment.start} does not stand on a multiple of {size} bytes"
            advice = "check the configured segment size (--config or --set)"
            findings.add("log-files-tile", Severity.DAMAGE, file, text, advice=advice)
        if number and segments[number - 1].start + size < segment.start:
            end = segments[number - 1].start + size
            text = f"segments from {end} to {segment.start} are missing before it"
            advice = HEAL if log else REBUILD
            findings.add("log-files-tile", Severity.DAMAGE, file, text, offset=end, advice=advice)


def _check_length(
    segment: SegmentFile, size: int, file: str, findings: Findings, *, last: bool
) -> None:
    if segment.size == size:
        return
    if segment.size == 0 and last:
        text = "empty last segment; the broker deletes it when it starts"
        findings.add("sizes", Severity.TAIL, file, text)
        return
    text = f"{segment.size} bytes long, segments here have {size}"
    advice = (
        f"a broker refuses to start: with it stopped, extend the file to {size} bytes (truncate -s)"
        if segment.size < size
        else "check the configured segment size (--config or --set)"
    )
    findings.add("sizes", Severity.DAMAGE, file, text, offset=segment.size, advice=advice)


def _check_index_files(directory: StoreDirectory, findings: Findings) -> None:
    for stray in directory.index_listing.strays:
        text = "not an index file: its name is no time; brokers pass it over"
        findings.add("sizes", Severity.NOTE, directory.relative(stray), text)
    layout = directory.index_layout
    if layout is None:
        text = "the layout of the index cannot be read off its files, so it was not checked"
        advice = "give --set maxHashSlotNum=N, or --config broker.conf"
        findings.add("sizes", Severity.NOTE, "index", text, advice=advice)
        return
    for file in directory.index_listing.segments:
        if file.size != layout.size:
            text = f"{file.size} bytes long, index files here have {layout.size}"
            severity = Severity.DAMAGE if file.size >= HEADER.size else Severity.TAIL
            advice = REBUILD
            findings.add("sizes", severity, directory.relative(file.path), text, advice=advice)


def _check_own_names(directory: StoreDirectory, findings: Findings) -> None:
    """Report anything that has the name of one of the broker's root files and is not a regular
    file."""
    for name in ("abort", "checkpoint", "lock", CKPT_NAME, FLUSHED_NAME):
        path = directory.path(name)
        if os.path.lexists(path) and not os.path.isfile(path):
            text = f"{NO_FILE}, or a link that leads nowhere"
            advice = "move it away; a broker keeps a file there, and this one was not read"
            findings.add("sizes", Severity.DAMAGE, name, text, advice=advice)


def _check_kinds(directory: StoreDirectory, findings: Findings) -> None:
    """Check that BatchCQ topics have their queues in batchconsumequeue, all others in
    consumequeue."""
    remade = directory.remade_topics()
    for topic in sorted(remade):
        text = f"queues of {topic} are made again from the log at the next start of rocketbed"
        findings.add("topics", Severity.TAIL, "", text)
    for topic, (folder, declared) in sorted(directory.kind_conflicts().items()):
        if topic not in remade:
            text = f"queues of {topic} are in {folder}, its attribute queue.type is {declared}"
            advice = "a broker refuses to start: remove the folder and rebuild"
            path = os.path.join(folder, topic)
            findings.add("topics", Severity.DAMAGE, path, text, advice=advice)
