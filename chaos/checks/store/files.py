"""Internal consistency of each store, judged by the independent reader; chaos.md 2.7.

After a clean stop at the end nothing may be unfinished. An image shows the state after a power cut
or a kill: a torn tail, and queues that lag behind the log, are legal in it; what is judged is what
must never happen.
"""

import os
from typing import Final, NamedTuple

from rocketbed.chaos.checks.check import NO_INDEX, Case, Check, Findings, NotApplicable, check
from rocketbed.chaos.checks.disks import LYING
from rocketbed.chaos.checks.events import step_of, targets_of
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.result import (
    CheckResult,
    Example,
    Excuse,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.evidence.node_events import ALARMS
from rocketbed.inspect import Finding
from rocketbed.inspect import Severity as Grade
from rocketbed.inspect.marks import CKPT_NAME

CUT_NS = 5_000_000_000
"""Maximum time between a real disk's power cut and its node's report of it."""
GIVES_NOTHING = "the disk does not give it"
INDEX_FILES = "index files"


class StoreCheck(NamedTuple):
    id: str
    rules: frozenset[str]
    """Rules of `rocketbed.inspect` that it covers."""
    unit: str
    """Name of what it counts."""
    meaning: str


STORE_CHECKS: Final = (
    StoreCheck(
        "log-files-tile",
        frozenset({"log-files-tile", "log-end", "sizes"}),
        "records",
        "Segments and records follow each other without a gap, in files of the right sizes.",
    ),
    StoreCheck(
        "record-checksums",
        frozenset({"record-checksums"}),
        "records",
        "No record that fails its checksum is served, counted, indexed or replicated.",
    ),
    StoreCheck(
        "nothing-beyond-log",
        frozenset({"nothing-beyond-log"}),
        "queues",
        "No queue entry, index entry or answer refers to bytes beyond the end of the log.",
    ),
    StoreCheck(
        "queue-entries-match-log",
        frozenset({"queue-entries-match-log"}),
        "queues",
        "Each queue entry points to a record of its own topic and queue, with its size.",
    ),
    StoreCheck(
        "queue-entries-complete",
        frozenset({"queue-entries-complete"}),
        "queues",
        "Each dispatched record has a queue entry.",
    ),
    StoreCheck(
        "queue-entry-places",
        frozenset({"queue-entry-places"}),
        "queues",
        "Entry n of a queue points to the record with queue offset n: no hole, no repeat.",
    ),
    StoreCheck(
        "queue-tag-codes",
        frozenset({"queue-tag-codes"}),
        "queues",
        "The tag code of an entry is that of its record's tag.",
    ),
    StoreCheck(
        "index-matches-log",
        frozenset({"index-matches-log"}),
        INDEX_FILES,
        "Index entries lead to records that have the key; headers and chains are sound.",
    ),
    StoreCheck(
        "no-silent-damage",
        frozenset({"no-silent-damage"}),
        "records",
        "Damage within a log is reported, and what follows it is not dropped silently.",
    ),
    StoreCheck(
        "index-complete",
        frozenset({"index-complete"}),
        INDEX_FILES,
        "Each record is in the index once.",
    ),
    StoreCheck(
        "checkpoint-not-ahead",
        frozenset({"checkpoint-not-ahead"}),
        "directories",
        "No value of the checkpoint is above what the durable image proves.",
    ),
    StoreCheck(
        "abort-file",
        frozenset({"abort-file"}),
        "directories",
        "The file `abort` exists exactly while a process lives or after an unclean end.",
    ),
    StoreCheck(
        "tables-readable",
        frozenset({"tables-readable", "topics"}),
        "directories",
        "Tables and settings can be read after any power cut.",
    ),
    StoreCheck(
        "queue-bounds",
        frozenset({"queue-bounds"}),
        "queues",
        "Bounds of queues are in order and within the log.",
    ),
)
KILL_RULES = frozenset(
    {
        "log-files-tile",
        "record-checksums",
        "queue-entries-match-log",
        "queue-entry-places",
        "queue-tag-codes",
        "no-silent-damage",
        "checkpoint-not-ahead",
        "abort-file",
        "tables-readable",
        "sizes",
    }
)
"""Rules that hold for the image of a kill: the page cache survives, and the rest is unfinished
work."""
CUT_RULES = frozenset({"checkpoint-not-ahead", "abort-file", "tables-readable"})
"""Rules that a power cut must not break. For durable bytes of the log also `LOG_RULES`."""
LOG_RULES = frozenset({"log-files-tile", "record-checksums", "no-silent-damage"})
HARMFUL = frozenset({LYING, "eio-fsync", "eio-write", "eio-read"})
"""Disk faults after which a disk may hold wrong data or fail to return it."""


def _store_checks(case: Case) -> list[CheckResult]:
    """Return the reader's findings on all final stores, rule by rule."""
    if not case.evidence.nodes:
        return [not_run(check.id, check.unit, "no directory was read") for check in STORE_CHECKS]
    return [_store_check(case.evidence, check) for check in STORE_CHECKS]


store_checks = Check(
    tuple(check.id for check in STORE_CHECKS),
    tuple(check.meaning for check in STORE_CHECKS),
    _store_checks,
    needs_history=False,
)


@check("store-images", "images", needs_history=False)
def image_checks(case: Case, findings: Findings) -> int:
    """The rules that hold at any time hold in all images, and durable files are present.

    Durable are the mark itself and `checkpoint`, once the node has recovered on this disk, and what
    the mark promises: for each record below W its queue unit and its keys, and the index file that
    it names. Not judged: an untrusted mark, the height of W, topics that were deleted or are being
    recreated, records without a row in the topic table and a queue, keys while some node had no
    index, and stores of nodes that keep no mark at the end either.
    """
    evidence = case.evidence
    if not evidence.images:
        raise NotApplicable("no image was taken in the run")
    for image in evidence.images:
        is_cut = _after_power_cut(evidence, image)
        for finding in image.report.findings:
            if finding.severity < Grade.DAMAGE:
                continue
            excuse = evidence.disks.may_differ(image, file=finding.file)
            if _is_promised(evidence, image, finding):  # damage of the log looks the same
                excuse = excuse or evidence.disks.may_differ(image, file="commitlog")
            elif not _binds(image, finding, is_cut=is_cut):
                continue
            findings.add(_example(image, finding), excuse=excuse)
        for file in _missing(evidence, image):
            text = f"{image.label}: {file} is missing, which was durable"
            excuse = evidence.disks.may_differ(image, file=file)
            findings.add(text, excuse=excuse, node=image.name, time_ns=image.image_record.time_ns)
    return len(evidence.images)


@check("tables-replaced-whole", "nodes", needs_history=False)
def whole_tables(case: Case, findings: Findings) -> int:
    """No table is written under its own name, where a cut would leave neither version."""
    if not case.evidence.record.digest:
        raise NotApplicable("only a simulated disk reports its writes")
    for event in case.evidence.events(Function.NODE, "table_in_place"):
        text = f"{event.node} wrote into {event.fields['path']}"
        findings.add(text, node=event.node, time_ns=event.time_ns)
    return len(case.evidence.nodes)


@check("no-false-alarm", "nodes", needs_history=False)
def false_alarms(case: Case, findings: Findings) -> int:
    """A node whose disk worked correctly reports no damage.

    A copy receives a master's damage with the bytes, so a group counts as a whole.
    """
    evidence = case.evidence
    if evidence.foreign:
        raise NotApplicable("only our own node reports what it finds")
    affected = {
        evidence.group_of_name(node)
        for event in evidence.history.events
        if event.kind in ("damaged", "damage")
        or (event.kind == "disk" and HARMFUL.intersection(step_of(event).split()))
        for node in targets_of(event)
    }
    healthy = [
        node for node in evidence.record.stores if evidence.group_of_name(node) not in affected
    ]
    if not healthy:
        raise NotApplicable("the disks of every group were damaged or failed")
    for node in healthy:
        for event in evidence.reports(node, 0):
            if event.fields.get("event") in ALARMS:
                text = f"{node} reported damage, and nothing damaged it: {event.fields.get('text')}"
                excuse = _cut(evidence, node, event.time_ns) if GIVES_NOTHING in text else None
                findings.add(text, excuse=excuse, node=node, time_ns=event.time_ns)
    return len(healthy)


def _cut(evidence: Evidence, node: str, time_ns: int) -> Excuse | None:
    """Return why a real disk may be unavailable: at a power cut it goes a moment before its
    process."""
    for cut in evidence.history.events if evidence.record.backend != "sim" else ():
        is_near = abs(cut.time_ns - time_ns) < CUT_NS
        if cut.kind == "powercut" and is_near and node in targets_of(cut):
            cause = f"power cut of {node}"
            return Excuse(cause, cut.time_ns - CUT_NS, cut.time_ns + CUT_NS)
    return None


@check("abort-file-law", "ends of processes", needs_history=False)
def abort_law(case: Case, findings: Findings) -> int:
    """The abort file is present after a kill or a cut, and absent after a clean stop.

    A cut may take the file of a process that had not made it durable yet; that is before its first
    write, so only with an empty store.
    """
    evidence = case.evidence
    examined = 0
    for image in evidence.images:
        image_record = image.image_record
        if image_record.cause not in ("kill", "powercut", "crash") or not _was_up(evidence, image):
            continue
        examined += 1
        marks = image.directory.marks
        # `clean` is stored: the last act of a stop.
        is_stopped = marks is not None and marks.trusted
        if not image.directory.has_abort and not is_stopped:
            text = f"{image.label}: there is no abort file, although the process lived"
            findings.add(
                text, node=image.name, time_ns=image_record.time_ns, distance=image.log_end
            )
    for node in evidence.nodes:
        if node.name not in evidence.record.stopped_cleanly:
            continue
        examined += 1
        if node.directory.has_abort:
            text = f"{node.name} was stopped cleanly, and its abort file is there"
            findings.add(text, node=node.name)
    if not examined:
        raise NotApplicable("no process was killed, cut or stopped cleanly")
    return examined


def _was_up(evidence: Evidence, image: NodeLog) -> bool:
    """True if the node had recovered in its last start before an image, so that `abort` is
    durable."""
    up = False
    for event in evidence.history.events:
        if event.time_ns > image.image_record.time_ns:
            break
        if event.node == image.name and event.kind in ("recovered", "ready"):
            up = True
        elif event.node == image.name and event.kind in ("exit", "stop", "start"):
            up = event.kind == "exit" and event.time_ns == image.image_record.time_ns and up
    return up


@check("one-store-owner", "starts")
def two_owners(case: Case, findings: Findings) -> int:
    """Between two starts of a node lies its exit.

    A second process on its store gives up before it has changed anything.
    """
    record = case.evidence.record
    alive: set[str] = set()
    names = {*record.ids, *record.stores}
    examined = 0
    for event in case.evidence.history.events:
        if event.kind == "start" and event.node in names:
            examined += 1
            if event.node in alive:
                text = f"{event.node} was started while its process before was alive"
                findings.add(text, node=event.node, time_ns=event.time_ns)
            alive.add(event.node)
        elif event.kind == "twin" and event.function == Function.NODE:
            examined += 1
            reason = str(event.fields.get("reason"))
            changes = event.fields.get("changes")
            if changes or not reason.startswith("StoreLocked"):
                text = f"a second process on the store of {event.node} made {changes} changes"
                text += f" and ended with {reason or 'a clean stop'}"
                findings.add(text, node=event.node, time_ns=event.time_ns)
        elif event.kind in ("exit", "kill", "powercut", "stop", "crash", "kill-in-recovery"):
            alive -= {event.node, *map(str, event.fields.get("targets", ()))}
    if not examined:
        raise NotApplicable("the history records no start")
    return examined


def _store_check(evidence: Evidence, check: StoreCheck) -> CheckResult:
    findings = Findings()
    if check.unit == INDEX_FILES and not evidence.record.indexed:
        return not_applicable(check.id, check.unit, NO_INDEX)
    for node in evidence.nodes:
        floor = Grade.TAIL if node.name in evidence.record.stopped_cleanly else Grade.DAMAGE
        for finding in node.report.findings:
            if finding.rule in check.rules and finding.severity >= floor:
                findings.add(
                    _example(node, finding),
                    excuse=evidence.disks.may_differ(node, file=finding.file),
                )
    counts = {
        node.name: 1
        if check.unit == "directories"
        else getattr(node.report, check.unit.replace(" ", "_"))
        for node in evidence.nodes
    }
    unexamined = [node for node, count in counts.items() if not count]
    if unexamined and not findings.anomalies and not sum(counts.values()):
        return not_run(check.id, check.unit, f"nothing to examine in {', '.join(unexamined)}")
    note = f"none in {', '.join(unexamined)}" if unexamined else ""
    return judged(
        check.id,
        sum(counts.values()),
        check.unit,
        findings.anomalies,
        note,
        allowed=findings.allowed,
    )


def _after_power_cut(evidence: Evidence, image: NodeLog) -> bool:
    """True if an image is of a power cut, or of a process that died before it had repaired one."""
    cut = False
    for event in evidence.history.events:
        if event.time_ns > image.image_record.time_ns:
            break
        if event.kind == "recovered" and event.node == image.name:
            cut = False
        elif event.kind == "powercut" or event.fields.get("cause") == "powercut":
            cut = cut or image.name in targets_of(event)
    return cut or image.image_record.cause == "powercut"


def _binds(image: NodeLog, finding: Finding, *, is_cut: bool) -> bool:
    """True if a rule holds for an image of this cause, at this place."""
    if not is_cut:
        return finding.rule in KILL_RULES
    durable, is_log = image.image_record.durable, finding.file.startswith("commitlog")
    on_disk = finding.offset is not None and durable is not None and finding.offset < durable
    return finding.rule in CUT_RULES or (finding.rule in LOG_RULES and on_disk and is_log)


def _is_promised(evidence: Evidence, image: NodeLog, finding: Finding) -> bool:
    """True if units or keys are missing that the image's mark declares to be on disk.

    The reader grades as damage only units below a trusted mark, and reports the keys' place in the
    log.
    """
    marks = image.directory.marks
    if marks is None or not marks.trusted:
        return False
    if finding.rule == "queue-entries-complete":
        return finding.file.split("/")[1] not in marks.deleted  # their queues may be half removed
    if finding.rule != "index-complete" or finding.offset is None or not evidence.record.indexed:
        return False
    return finding.offset < marks.durable_offset and not marks.index_off


def _missing(evidence: Evidence, image: NodeLog) -> list[str]:
    """Return the files that an image must have and lacks."""
    directory = image.directory
    marks, required = directory.marks, list[str]()
    if _has_recovered(evidence, image) and any(node.directory.marks for node in evidence.nodes):
        required += [CKPT_NAME, "checkpoint"]
    if marks is not None and marks.trusted and marks.index and evidence.record.indexed:
        required.append(f"index/{marks.index}")
    return [name for name in required if not os.path.exists(directory.path(name))]


def _has_recovered(evidence: Evidence, image: NodeLog) -> bool:
    """True if the node had ever recovered on the image's disk, so that its mark is durable."""
    recovered = False
    for event in evidence.history.events:
        if event.time_ns > image.image_record.time_ns:
            break
        if event.kind == "wipe" and image.name in targets_of(event):
            recovered = False
        elif event.kind == "recovered" and event.node == image.name:
            recovered = True
    return recovered


def _example(node: NodeLog, finding: Finding) -> Example:
    text = f"{node.label}: {finding.rule} {finding.file}: {finding.text}"
    time_ns = None if node.image is None else node.image.time_ns
    return Example(text, node=node.name, time_ns=time_ns, distance=finding.count)
