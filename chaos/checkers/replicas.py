"""Are the replicas' logs the same bytes? Chaos.md 2.6, R1 at the end of a run."""

from itertools import combinations

from chaos.checkers.evidence import Evidence, NodeEvidence
from chaos.checkers.result import CheckResult, judged, not_run

_CHUNK = 4 << 20


def equal_logs(evidence: Evidence) -> CheckResult:
    """R1: every two logs hold the same bytes over the range that both have."""
    name = "R1 logs byte-equal"
    findings: list[str] = []
    compared = 0
    for one, other in combinations(evidence.nodes, 2):
        start, end = common_range(one, other)
        if start >= end:
            return not_run(name, "bytes", f"{one.name} and {other.name} have nothing in common")
        difference = _first_difference(one, other, start, end)
        compared += end - start
        if difference is not None:
            findings.append(f"{one.name} and {other.name} differ from log {difference} on")
    ends = ", ".join(f"{node.name} {node.log_min} to {node.log_end}" for node in evidence.nodes)
    return judged(name, compared, "bytes", findings, ends)


def common_range(one: NodeEvidence, other: NodeEvidence) -> tuple[int, int]:
    """The part of the log that both have, bytes."""
    return max(one.log_min, other.log_min), min(one.log_end, other.log_end)


def _first_difference(one: NodeEvidence, other: NodeEvidence, start: int, end: int) -> int | None:
    while start < end:
        here = one.directory.log.read(start, min(_CHUNK, end - start))
        there = other.directory.log.read(start, min(_CHUNK, end - start))
        size = min(len(here), len(there))
        if here[:size] != there[:size]:
            pairs = enumerate(zip(here, there, strict=False))
            return start + next(at for at, (left, right) in pairs if left != right)
        if size == 0:
            return start
        start += size
    return None
