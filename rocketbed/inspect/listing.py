"""Overview of a store directory: files, offsets, queues, marks.

It is quick on a large store too: of the log only the last segments are read, to find its end;
queues and index hold their own bounds.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from rocketbed.inspect.commitlog import Hole, LogEnd
from rocketbed.inspect.consumequeue import BatchConsumeQueue, ConsumeQueue
from rocketbed.inspect.directory import QueueKey, StoreDirectory


def describe(directory: StoreDirectory) -> dict[str, Any]:
    """Return the overview as JSON fields. Log offsets are in bytes, queue offsets in messages."""
    log = directory.log
    checkpoint = directory.checkpoint
    return {
        "directory": directory.root,
        "lockedBy": directory.lock_holder(),
        "abort": directory.abort_lines() if directory.has_abort else None,
        "checkpoint": checkpoint._asdict() if checkpoint else None,
        "log": {"min": log.min_offset, **_log_end(directory)},
        "segments": [
            {"file": directory.relative(segment.path), "start": segment.start, "size": segment.size}
            for segment in log.segments
        ],
        "queues": list(_queues(directory)),
        "index": [
            {"file": directory.relative(index.file.path), **index.header()._asdict()}
            for index in directory.index_files
        ],
        "indexLayout": directory.index_layout._asdict() if directory.index_layout else None,
        "config": directory.config_files(),
        "others": _foreign_names(directory),
        "strays": [
            directory.relative(path)
            for path in (
                *directory.log_strays,
                *directory.queue_strays,
                *directory.index_listing.strays,
            )
        ],
    }


def table(row: dict[str, Any]) -> Iterator[str]:
    """Yield the overview as lines of text."""
    log = row["log"]
    yield f"log       {log['min']} to {log['end']}" + (", torn tail" if log["torn"] else "")
    if log["damaged"]:
        yield "          damaged near its end: rocketbed store fsck says where"
    for segment in row["segments"]:
        yield f"          {segment['file']}  {segment['size']} bytes"
    holder = row["lockedBy"]
    yield "lock      " + (
        "free" if holder is None else f"held by process {holder}: the store is live"
    )
    yield "abort     " + ("none" if row["abort"] is None else f"present {row['abort'][:1]}")
    checkpoint = row["checkpoint"]
    if checkpoint is None:
        yield "checkpoint  none"
    else:
        yield "checkpoint  " + ", ".join(f"{name} {value}" for name, value in checkpoint.items())
    for queue in row["queues"]:
        name = f"{queue['topic']}/{queue['queueId']}"
        kind = " (batch)" if queue["batch"] else ""
        yield f"queue     {name:<44} {queue['min']} to {queue['max']}, {queue['files']} files{kind}"
    for index in row["index"]:
        yield (
            f"index     {index['file']}  {index['next_entry'] - 1} keys,"
            f" log {index['begin_offset']} to {index['end_offset']}"
        )
    yield f"config    {', '.join(row['config'])}"
    if row["others"]:
        yield f"others    {', '.join(row['others'])}"
    for stray in row["strays"]:
        yield f"stray     {stray}"


def _log_end(directory: StoreDirectory) -> dict[str, Any]:
    """Find the end of the log, from the last segment that begins with a record on."""
    log = directory.log
    for segment in reversed(log.segments):
        if directory.pool.first_data(segment.path, 0, min(segment.size, 8)) is None:
            continue
        damaged = False
        for item in log.scan(segment.start):
            if isinstance(item, Hole):
                damaged = True
            elif isinstance(item, LogEnd):
                return {
                    "end": item.offset,
                    "torn": item.torn_at is not None,
                    "damaged": damaged or item.offset == segment.start != log.min_offset,
                }
    return {"end": log.min_offset, "torn": False, "damaged": False}


def _queues(directory: StoreDirectory) -> Iterator[dict[str, Any]]:
    log_min = directory.log.min_offset
    kinds: tuple[tuple[bool, Mapping[QueueKey, ConsumeQueue | BatchConsumeQueue]], ...] = (
        (False, directory.queues),
        (True, directory.batch_queues),
    )
    for batch, queues in kinds:
        for (topic, queue_id), queue in sorted(queues.items()):
            bounds = queue.bounds(log_min)
            yield {
                "topic": topic,
                "queueId": queue_id,
                "min": bounds.minimum,
                "max": bounds.maximum,
                "files": len(queue.segments),
                "batch": batch,
            }


def _foreign_names(directory: StoreDirectory) -> list[str]:
    """Return the names in the root that belong to no part of the store."""
    expected = {"abort", "checkpoint", "lock", "commitlog", "config", "index"}
    expected |= {"consumequeue", "batchconsumequeue"}
    return sorted(set(os.listdir(directory.root)) - expected)
