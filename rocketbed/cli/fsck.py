"""Text of `rocketbed store fsck`: verdict, lost messages, steps, and an entry for each cause."""

import os
import shlex
from collections.abc import Iterable, Iterator

from rocketbed.cli.client import table
from rocketbed.inspect.check.store import Report
from rocketbed.inspect.findings import (
    FULL_RECOVERY,
    HEAL,
    NEXT_START,
    REBUILD,
    RULES,
    Finding,
    Severity,
)

ENTRIES_MAX = 20
"""Causes and lost ranges that are printed; `--json` has all of them."""


def report_lines(report: Report, options: str) -> Iterator[str]:
    """Yield the report, the verdict first. `options` is what the user gave after the command."""
    causes = _causes(report)
    yield _verdict(report, [finding for finding, _ in causes])
    live = "; a broker holds the store, so this is a moving picture" if report.live else ""
    yield (
        f"log {report.log_min} to {report.log_end}, {report.records} records,"
        f" {report.queues} queues, {report.index_files} index files{live}"
    )
    if report.losses:
        yield from ("", "Lost from this directory:")
        yield from _shortened([f"  {line}" for line in _loss_table(report)], "ranges")
    if report.worst:
        yield from ("", "What to do:")
        steps = _steps(report, [finding for finding, _ in causes], options)
        yield from (f"  {number}. {step}" for number, step in enumerate(steps, start=1))
    if causes:
        yield from ("", "Causes:" if report.worst else "Notes:")
    yield from _shortened([line for cause in causes for line in [_entry(*cause)]], "causes")


def _verdict(report: Report, causes: list[Finding]) -> str:
    count = sum(loss.count for loss in report.losses)
    queues = len({(loss.topic, loss.queue_id) for loss in report.losses})
    lost = [f"{_number(count, 'message')} of {_number(queues, 'queue')} lost"] if count else []
    if report.unreadable_bytes:
        lost.append(f"{report.unreadable_bytes} bytes of the log missing or unreadable")
    if report.worst is Severity.DAMAGE:
        problems = [finding for finding in causes if finding.severity is Severity.DAMAGE]
        first = problems[0] if problems else causes[0]
        what = ", ".join(lost) or f"{first.file}: {first.text}"
        more = "" if lost or len(problems) < 2 else f", and {len(problems) - 1} more"
        return f"damaged: {what}{more}"
    if report.worst is Severity.TAIL:
        what = f" ({', '.join(lost)}: not on disk when it stopped)" if lost else ""
        return f"healthy after an unclean stop: the next start of the broker repairs the end{what}"
    return "healthy"


def _loss_table(report: Report) -> list[str]:
    rows: list[tuple[str, ...]] = [("topic", "queue", "messages", "queue offsets")]
    rows += [
        (loss.topic, str(loss.queue_id), str(loss.count), f"{loss.first} to {loss.last}")
        for loss in report.losses
    ]
    return table(rows)


def _causes(report: Report) -> list[tuple[Finding, list[Finding]]]:
    """Return the findings that stand for themselves, each with those that follow from it."""
    followers: dict[int, list[Finding]] = {}
    for finding in report.findings:
        if finding.cause is not None:
            followers.setdefault(finding.cause, []).append(finding)
    causes = []
    for finding in report.findings:
        if finding.cause is None:
            is_log = finding.file.startswith("commitlog") and finding.offset is not None
            causes.append((finding, followers.pop(finding.offset or 0, []) if is_log else []))
    return causes


def _steps(report: Report, causes: list[Finding], options: str) -> list[str]:
    """Return what to do, in order, with exact commands."""
    advices = dict.fromkeys(finding.advice for finding in causes if finding.severity)
    steps = ["Stop the broker."] if report.live and report.worst is Severity.DAMAGE else []
    if HEAL in advices:
        steps.append(
            f"Copy what the log lacks from a replica: rocketbed store heal {options}"
            " --from HOST:PORT (its haListenPort, by default listenPort + 1)."
            " If no replica has it, `rocketbed node --check -c broker.conf` names the setting with"
            " which a node starts without it."
        )
    steps += [
        f"{advice[:1].upper()}{advice[1:]}."
        for advice in advices
        if advice not in ("", HEAL, FULL_RECOVERY, REBUILD, NEXT_START)
    ]
    if FULL_RECOVERY in advices:
        abort, checkpoint = (_in_store(report, name) for name in ("abort", "checkpoint"))
        steps.append(f"Let recovery read the whole log: touch {abort} && rm -f {checkpoint}")
    if REBUILD in advices:
        steps.append(f"Rebuild queues and index: rocketbed store rebuild {options} --in-place")
    if steps:
        steps.append(f"Check again: rocketbed store fsck {options}")
    elif NEXT_START in advices:
        steps.append("Start the broker: it repairs what it left.")
    return steps


def _in_store(report: Report, name: str) -> str:
    return shlex.quote(os.path.join(report.root, name))


def _entry(finding: Finding, followers: list[Finding]) -> str:
    where = finding.file if finding.offset is None else f"{finding.file} @ {finding.offset}"
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    severity = max(finding.severity, *(each.severity for each in followers), Severity.NOTE)
    lines = [f"{severity.name.lower():<7} {finding.rule}  {where}: {finding.text}{times}"]
    if severity:
        lines.append(f"rule: {RULES[finding.rule]}")
    if followers:
        counts: dict[str, int] = {}
        for each in followers:
            counts[each.file] = counts.get(each.file, 0) + each.count
        names = ", ".join(f"{name} ({count})" for name, count in list(counts.items())[:4])
        more = f" and {len(counts) - 4} more files" if len(counts) > 4 else ""
        lines.append(f"follows from it: findings in {names}{more}")
    return f"\n{'':10}".join([f"  {lines[0]}", *lines[1:]])


def _shortened(lines: list[str], noun: str) -> Iterable[str]:
    if len(lines) <= ENTRIES_MAX:
        return lines
    rest = f"  ... {len(lines) - ENTRIES_MAX} more {noun}: --json has all of them"
    return [*lines[:ENTRIES_MAX], rest]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
