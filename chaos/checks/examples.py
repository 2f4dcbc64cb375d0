"""Examples of findings about rows, and figures over many of them."""

from collections.abc import Iterable

from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.result import Example
from rocketbed.chaos.evidence.history import Function, Row


def example_of(evidence: Evidence, row: Row, outcome: str, distance: int = 0) -> Example:
    """Return an example about the message of a row."""
    return evidence.example(
        row,
        f"value {row.value} of {evidence.place(row)} {outcome}",
        operation=row.operation if row.function <= Function.SEND_ONEWAY else None,
        node=evidence.node(row),
        distance=distance,
    )


def spread(name: str, times_ns: Iterable[int]) -> dict[str, float]:
    """Return median, 99th percentile and maximum of some times, as figures in milliseconds."""
    ranked = sorted(map(int, times_ns))
    places = {"p50": len(ranked) // 2, "p99": len(ranked) * 99 // 100, "max": len(ranked) - 1}
    return {f"{name}_{key}_ms": round(ranked[at] / 1e6, 3) for key, at in places.items()}
