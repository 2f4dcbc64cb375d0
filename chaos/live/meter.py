"""The load as points of a chart: rates by outcome, and the latency of what was acknowledged."""

from collections.abc import Mapping
from typing import Any, Final

from rocketbed.chaos.trial.latency import Latencies, quantiles

OUTCOMES: Final = ("ok", "weak", "fail", "info")
SHARES: Final = (0.5, 0.99)
"""Quantiles of send latency that are shown."""


class Meter:
    """Looks at the counters that the clients of a run keep anyway."""

    def __init__(self, counts: Mapping[str, int], latencies: Latencies) -> None:
        self._counts = counts
        self._latencies = latencies
        self._before = self._look()
        self._time_s = 0.0

    def point(self, time_s: float) -> dict[str, Any]:
        """The time since the point before: messages a second, latency in milliseconds."""
        counts, times = self._look()
        old_counts, old_times = self._before
        passed_s = max(time_s - self._time_s, 1e-3)
        self._before, self._time_s = (counts, times), time_s
        point: dict[str, Any] = {"t": round(time_s, 3)}
        for name in OUTCOMES:
            point[name] = round((counts[name] - old_counts[name]) / passed_s, 1)
        for share, value in zip(SHARES, quantiles(old_times, times, SHARES), strict=True):
            point[f"p{share * 100:.0f}"] = None if value is None else round(value * 1000, 3)
        return point

    def _look(self) -> tuple[dict[str, int], list[int]]:
        return {name: self._counts.get(name, 0) for name in OUTCOMES}, [*self._latencies.counts]
