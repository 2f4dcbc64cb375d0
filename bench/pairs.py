"""Rates of sends and pulls of this checkout and of another one, in pairs: AB, BA, AB, ...

Both run the nodes' code; the load generator is this one's. Each pair gives a ratio of its own, so
that other load of the machine affects both alike.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path

from bench.processes import Bench, load, wait_serving

Row = tuple[str, float, str]
PAIRS = 6
LOADS = {
    "64": "send, 64 in flight",
    "8": "send, 8 in flight",
    "1": "send, 1 in flight",
    "pull": "pull, 32 a request, 8 in flight",
}
"""Arguments of the generator, in this order, and the names of their rows."""
WARM_S = 1.0
SIDES = ("before", "after")


def before_and_after(bench: Bench, before: Path, seconds: float) -> Iterator[Row]:
    """Yield medians of six pairs: rate and CPU of each side, and of the pairs' ratios."""
    if not (before / "rocketbed" / "__main__.py").is_file():
        raise SystemExit(f"{before} is no checkout of rocketbed")
    runs: dict[str, list[dict[str, dict[str, float]]]] = {side: [] for side in SIDES}
    for pair in range(PAIRS):
        for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
            runs[side].append(_run(bench, before if side == "before" else None, seconds))
    for kind, name in LOADS.items():
        for field, title, unit in (
            ("rate", name, "messages/s"),
            ("cpu_us", f"CPU, {name}", "us/message"),
        ):
            values = {side: [run[kind][field] for run in runs[side]] for side in SIDES}
            for side in SIDES:
                yield f"{title}, {side}", statistics.median(values[side]), unit
            ratios = [b / a for a, b in zip(values["before"], values["after"], strict=True)]
            yield f"{title}, after / before", statistics.median(ratios), "x"
            yield "  least", min(ratios), "x"
            yield "  greatest", max(ratios), "x"


def _run(bench: Bench, checkout: Path | None, seconds: float) -> dict[str, dict[str, float]]:
    broker = bench.node("mappedFileSizeCommitLog=1073741824", checkout=checkout)
    wait_serving(broker)
    load(broker, "64", WARM_S)
    results = {kind: load(broker, kind, seconds) for kind in LOADS}
    broker.kill()
    bench.forget(broker)
    return results
