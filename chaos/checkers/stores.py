"""Does each final directory agree with itself? Chaos.md 2.7, by the independent reader."""

from chaos.checkers.evidence import Evidence
from chaos.checkers.result import CheckResult, judged, not_run
from rocketbed.inspect import Report, Severity

STORE_CHECKS: tuple[tuple[str, frozenset[str], str], ...] = (
    ("S1 logs tile", frozenset({"S1", "S2", "S9", "S13", "sizes"}), "records"),
    ("S4 queues agree with the log", frozenset({"S3", "S4", "S5", "S6", "S7"}), "queues"),
    ("S8 index agrees with the log", frozenset({"S8", "S10"}), "index files"),
    ("S11 checkpoint and abort file", frozenset({"S11", "S12"}), "directories"),
    ("S15 configuration files", frozenset({"S15", "topics"}), "directories"),
)
"""Name, rules of the reader that it stands for, and what it counts."""


def store_checks(evidence: Evidence, *, stopped_cleanly: bool = True) -> list[CheckResult]:
    """The reader's findings on all nodes, rule by rule.

    After a clean stop nothing may be unfinished; otherwise a torn tail and queues behind the log
    are what a kill leaves, and are no violation.
    """
    floor = Severity.TAIL if stopped_cleanly else Severity.DAMAGE
    return [_store_check(evidence, *check, floor=floor) for check in STORE_CHECKS]


def _store_check(
    evidence: Evidence, name: str, rules: frozenset[str], unit: str, *, floor: Severity
) -> CheckResult:
    findings = [
        f"{node.name}: {finding.rule} {finding.file}: {finding.what}"
        for node in evidence.nodes
        for finding in node.report.findings
        if finding.rule in rules and finding.severity >= floor
    ]
    counts = {node.name: _count(node.report, unit) for node in evidence.nodes}
    empty = [node for node, count in counts.items() if not count]
    if empty and not findings:
        return not_run(name, unit, f"{', '.join(empty)}: there are none")
    return judged(name, sum(counts.values()), unit, findings)


def _count(report: Report, unit: str) -> int:
    """How much of a directory a check has looked at."""
    counts = {
        "records": report.records,
        "queues": report.queues,
        "index files": report.index_files,
        "directories": 1,
    }
    return counts[unit]
