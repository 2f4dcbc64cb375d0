"""Check that checkpoint, abort file and configuration are true of the files.

Rules S11, S12, S15, S16 and S18 of chaos.md 2.7, as far as a single directory shows them.
"""

import os
from typing import Any

from rocketbed.inspect.check.queues import LogFacts
from rocketbed.inspect.config import read_json
from rocketbed.inspect.directory import Checkpoint, StoreDirectory
from rocketbed.inspect.files import read_regular
from rocketbed.inspect.findings import FULL_RECOVERY, HEAL, NEXT_START, Findings, Severity
from rocketbed.inspect.marks import CKPT_NAME, FLUSHED_NAME

CHECKPOINT_SIZE = 4096
_PERM_READ = 4
_QUEUES_USUAL_MAX = 65_536
"""Queue count of a topic above which it is taken for a damaged value."""


def check_lock(directory: StoreDirectory, findings: Findings) -> bool:
    """Return True if a process holds the store, which then changes while it is read (S18)."""
    holder = directory.lock_holder()
    if holder is None:
        return False
    text = f"process {holder} holds the store: it is live, and what follows is a moving picture"
    findings.add("one-store-owner", Severity.NOTE, "lock", text)
    return True


def check_checkpoint(
    directory: StoreDirectory, facts: LogFacts, last_store_ms: int, findings: Findings
) -> None:
    """S11: no time later than the last record's, no offset beyond the end of the log."""
    checkpoint = directory.checkpoint
    if checkpoint is None:
        text = "missing: an unclean stop will read all of the log"
        findings.add("checkpoint-not-ahead", Severity.NOTE, "checkpoint", text)
        return
    size = os.path.getsize(directory.path("checkpoint"))
    if size != CHECKPOINT_SIZE:
        text = f"{size} bytes long instead of {CHECKPOINT_SIZE}"
        # The broker creates it before any other file.
        is_torn = size < CHECKPOINT_SIZE and (facts.unclean or facts.end == 0)
        severity = Severity.TAIL if is_torn else Severity.DAMAGE
        findings.add("checkpoint-not-ahead", severity, "checkpoint", text, advice=FULL_RECOVERY)
    text = "; ".join(_ahead(checkpoint, facts, last_store_ms))
    if text:
        findings.add(
            "checkpoint-not-ahead", Severity.DAMAGE, "checkpoint", text, advice=FULL_RECOVERY
        )


def check_own_marks(directory: StoreDirectory, facts: LogFacts, findings: Findings) -> None:
    """S11 for rocketbed's own marks, and report a truncation that was not finished."""
    marks = directory.marks
    if marks is None and os.path.isfile(directory.path(CKPT_NAME)):
        text = "no whole mark: it is written whole, so something else damaged it"
        advice = NEXT_START
        findings.add("checkpoint-not-ahead", Severity.DAMAGE, CKPT_NAME, text, advice=advice)
    if marks is None or not marks.trusted:
        return
    if marks.flushed_offset is None and os.path.isfile(directory.path(FLUSHED_NAME)):
        text = f"no whole mark: the log is known to be on disk up to W {marks.durable_offset} only"
        severity = Severity.TAIL if facts.unclean else Severity.DAMAGE
        if marks.durable_offset == facts.end:
            severity = Severity.NOTE  # W says the same
        findings.add("checkpoint-not-ahead", severity, FLUSHED_NAME, text)
    if marks.durable_offset > facts.end:
        text = f"W {marks.durable_offset} is beyond the end of the log {facts.end}"
        findings.add(
            "checkpoint-not-ahead",
            Severity.DAMAGE,
            CKPT_NAME,
            text,
            offset=facts.end,
            advice=HEAL,
            cause=findings.cause_at(facts.end),
        )
    if 0 <= marks.first < min(facts.minimum, marks.durable_offset):
        text = f"the log begins at {facts.minimum}, retention had kept it from {marks.first}"
        findings.add(
            "log-files-tile", Severity.DAMAGE, "commitlog", text, offset=marks.first, advice=HEAL
        )
    if marks.cut_to is not None:
        text = f"a truncation at {marks.cut_to} is not finished; the next start finishes it"
        findings.add("log-end", Severity.TAIL, CKPT_NAME, text, offset=marks.cut_to)


def _ahead(checkpoint: Checkpoint, facts: LogFacts, last_store_ms: int) -> list[str]:
    times = (
        ("log time", checkpoint.physic_ms),
        ("queue time", checkpoint.logics_ms),
        ("index time", checkpoint.index_ms),
    )
    offsets = (
        ("confirm offset", checkpoint.confirm_offset),
        ("queue offset", checkpoint.logics_offset),
    )
    return [
        f"{name} {value} is after the last record's {last_store_ms}"
        for name, value in times
        if value > last_store_ms
    ] + [
        f"{name} {value} is beyond the end of the log {facts.end}"
        for name, value in offsets
        if value > facts.end
    ]


def check_abort(
    directory: StoreDirectory, findings: Findings, *, torn: bool, lacks_end: bool
) -> None:
    """S12: without an abort file the last stop was clean, so nothing may be unfinished.

    `torn`: the log ends in bytes that are no record; `lacks_end`: queues or index lack its end.
    """
    if directory.has_abort:
        lines = directory.abort_lines()
        process = f" by process {lines[0]}" if lines and lines[0].isdigit() else ""
        text = f"the store was not stopped cleanly{process}, or is in use"
        findings.add("abort-file", Severity.NOTE, "abort", text)
    elif torn or lacks_end:
        unfinished = " and ".join(
            part for part, true in (("log", torn), ("queues or index", lacks_end)) if true
        )
        text = f"missing, which says that the stop was clean, but {unfinished} are unfinished"
        findings.add("abort-file", Severity.DAMAGE, "abort", text, advice=FULL_RECOVERY)


def check_config(directory: StoreDirectory, log_topics: set[str], findings: Findings) -> None:
    """S15: every JSON file can be read, and the topic table has the topics of the log."""
    for name in directory.config_files():
        if name.endswith((".json", ".json.bak")):
            _check_json(directory, name, findings)
    topics = directory.topics()
    if topics is None:
        return
    _check_hidden(directory, topics, findings)
    for topic in sorted(log_topics - topics.keys()):
        text = f"{topic} has messages in the log and is not in the table"
        advice = "create the topic before consumers ask for it"
        severity = Severity.NOTE
        if _is_lost(directory, topic):
            text += ", though nobody deleted it: a row was lost or its name damaged"
            advice = "restore the table, or start rocketbed, which makes the topic again"
            severity = Severity.DAMAGE
        findings.add("topics", severity, "config/topics.json", text, advice=advice)


def _check_hidden(
    directory: StoreDirectory, topics: dict[str, dict[str, Any]], findings: Findings
) -> None:
    """Report queues that the topic table hides from consumers; one flipped bit can do that."""
    counts: dict[str, int] = {}
    for topic, queue_id in (*directory.queues, *directory.batch_queues):
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    for topic, row in sorted(topics.items()):
        numbers = {key: row.get(key) for key in ("readQueueNums", "writeQueueNums", "perm")}
        read, perm, count = numbers["readQueueNums"], numbers["perm"], counts.get(topic, 0)
        hidden = []
        if isinstance(read, int) and count > read:
            hidden.append(f"there is a queue {count - 1}, and readQueueNums={read}")
        if isinstance(perm, int) and count and not perm & _PERM_READ:
            hidden.append(f"it has queues, and perm={perm} lets nobody read")
        for key in ("readQueueNums", "writeQueueNums"):
            number = numbers[key]
            if isinstance(number, int) and number > _QUEUES_USUAL_MAX:
                hidden.append(f"{key}={number}")
        for text in hidden:
            advice = "change the topic, unless that is wanted"
            file = "config/topics.json"
            findings.add("topics", Severity.NOTE, file, f"{topic}: {text}", advice=advice)


def _is_lost(directory: StoreDirectory, topic: str) -> bool:
    """True if the table has lost a topic: the topic has a queue, and a node that stopped cleanly
    has not deleted it. A replica's table may simply lag."""
    marks = directory.marks
    if marks is None or not marks.trusted or directory.has_abort or marks.is_replica:
        return False
    has_queue = any(key[0] == topic for key in (*directory.queues, *directory.batch_queues))
    return has_queue and topic not in marks.deleted


def _check_json(directory: StoreDirectory, name: str, findings: Findings) -> None:
    path = directory.path("config", name)
    try:
        text = read_regular(path).decode()
        if text.strip():
            read_json(text)
            return
        text = "empty"
    except FileNotFoundError:
        return
    except (ValueError, OSError) as error:
        text = f"cannot be read: {error}"
    is_backup = name.endswith(".bak")
    severity = Severity.TAIL if is_backup else Severity.DAMAGE
    backup = name if is_backup else name + ".bak"
    if is_backup:
        advice = "the broker writes it anew"
    elif directory.config(name) is not None:
        advice = f"copy {backup} over it"
    else:
        advice = "restore it from a backup; the broker would start with defaults or not at all"
    findings.add("tables-readable", severity, os.path.join("config", name), text, advice=advice)


def check_offsets(
    directory: StoreDirectory, maxima: dict[tuple[str, int], int], findings: Findings
) -> None:
    """Report committed offsets beyond the end of their queue; the broker will reset them (T20)."""
    table = directory.config("consumerOffset.json")
    offsets: Any = table.get("offsetTable") if isinstance(table, dict) else None
    if not isinstance(offsets, dict):
        return
    for name, row in sorted(offsets.items()):
        topic, _, group = name.rpartition("@")
        for queue_id, committed in row.items() if isinstance(row, dict) else ():
            is_valid = str(queue_id).isdigit() and isinstance(committed, int)
            maximum = maxima.get((topic, int(queue_id))) if is_valid else None
            if maximum is not None and committed > maximum:
                text = f"{group} committed {committed} of {topic}/{queue_id}, its end is {maximum}"
                advice = "messages were lost behind the end; the group will be set back"
                file = "config/consumerOffset.json"
                findings.add(
                    "queue-bounds", Severity.NOTE, file, text, offset=committed, advice=advice
                )


def check_minimum(directory: StoreDirectory, facts: LogFacts, findings: Findings) -> None:
    """S16: pre-blanks at the front of a queue, while the log begins at 0, give RocketMQ a minimum
    of 0 (T6)."""
    if facts.minimum:
        return
    for (topic, queue_id), queue in sorted(directory.queues.items()):
        first = next(queue.units(), None)
        if first is not None and first.is_pre_blank:
            text = (
                f"{topic} queue {queue_id} begins with a pre-blank at slot {first.slot}: RocketMQ"
            )
            text += " counts it as its first message after a restart"
            file = directory.relative(queue.segments[0].path)
            findings.add("queue-bounds", Severity.NOTE, file, text, offset=first.slot)
