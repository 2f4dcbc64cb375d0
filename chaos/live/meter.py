"""The load as points of a chart: rates by outcome, and the latency of acknowledged sends."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

OUTCOMES: Final = ("ok", "weak", "fail", "info")
SHARES: Final = (0.5, 0.99)
"""Quantiles of send latency that are shown."""


class Meter:
    """Reads the counters that the clients of a run keep."""

    def __init__(self, counts: Mapping[str, int], latencies_ns: "deque[int]") -> None:
        """The meter is the only consumer of `latencies_ns`."""
        self._counts = counts
        self._latencies_ns = latencies_ns
        self._previous = self._read_counts()
        self._time_s = 0.0

    def point(self, time_s: float) -> dict[str, Any]:
        """Return the point for the time since the last one: messages a second, latency in
        milliseconds."""
        previous, counts = self._previous, self._read_counts()
        elapsed_s = max(time_s - self._time_s, 1e-3)
        self._previous, self._time_s = counts, time_s
        times_ns = sorted(self._latencies_ns)
        self._latencies_ns.clear()
        point: dict[str, Any] = {"t": round(time_s, 3)}
        for name in OUTCOMES:
            point[name] = round((counts[name] - previous[name]) / elapsed_s, 1)
        for share in SHARES:
            time_ns = times_ns[int(share * len(times_ns))] if times_ns else None
            point[f"p{share * 100:.0f}"] = None if time_ns is None else round(time_ns / 1e6, 3)
        return point

    def _read_counts(self) -> dict[str, int]:
        return {name: self._counts.get(name, 0) for name in OUTCOMES}
