"""Requirements from the record of a run, computed by the testbed for `pipeline verify`.

The pipeline knows nothing of clusters, faults and promises. Which messages may be gone after a
power cut or a promotion (chaos.md 2.3) is the testbed's to say; what is there, Spark finds out.
"""

import json
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence, gather
from rocketbed.chaos.checks.judgement import load_history
from rocketbed.chaos.checks.loss.bound import Losses
from rocketbed.chaos.evidence.record import HISTORY_FILE, TRACE_FILE, read_record
from rocketbed.chaos.evidence.trace import read_trace

FORMAT: Final = 1
REQUIREMENT_FILE: Final = "requirement.json"


def write_requirement(directory: Path) -> Path:
    """Write the requirement of a run into its directory; the file.

    Raises `RecordError`, `OSError`, `ValueError` for a run that cannot be judged.
    """
    path = directory / REQUIREMENT_FILE
    path.write_text(json.dumps(requirement(directory), indent=1) + "\n", encoding="utf-8")
    return path


def requirement(directory: Path) -> dict[str, Any]:
    """Return the allowed differences between a run's stores and its history, as JSON fields."""
    record = read_record(directory)
    history = load_history(directory / HISTORY_FILE)
    if history.cut is not None:
        return _row([], {}, [], 0, record.ordered_topics)
    trace_file = directory / TRACE_FILE
    trace = read_trace(trace_file) if trace_file.exists() else None
    evidence = gather(record, history, str(directory), trace=trace)
    try:
        losses = Losses(evidence)
        return _row(
            [str(value) for value in sorted(losses.excuses)],
            agreed_ends(evidence, losses),
            [
                log.name
                for log in evidence.nodes
                if evidence.disks.damaged_by(log.name, record.end_ns)
            ],
            len(losses.loss_points) + len(evidence.splits),
            record.ordered_topics,
        )
    finally:
        evidence.close()


def agreed_ends(evidence: Evidence, losses: Losses) -> dict[str, int]:
    """Return by node the offset up to which its log has to equal the last master's (check R1)."""
    ends: dict[str, int] = {}
    for lineage in losses.lineages:
        final = evidence.final(lineage.group)
        if final is None:
            continue
        limit = lineage.held(final.name, ENDLESS - 1, final.log_end)
        for node in evidence.nodes:
            if node.group == lineage.group and node is not final:
                held = lineage.held(node.name, ENDLESS - 1, node.log_end)
                ends[node.name] = min(limit, held)
    return ends


def _row(
    excused: list[str],
    agreed: dict[str, int],
    damaged: list[str],
    turns: int,
    ordered_topics: list[str],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "excused": excused,
        "agreed": agreed,
        "damaged": damaged,
        "turns": turns,
        "ordered_topics": ordered_topics,
    }
