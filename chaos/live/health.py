"""Health of the cluster, independent of the run: well, degraded, or taking no writes.

Keys of the feed: `health` for the mark and the banner; spans of the row `writes` for outages.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocketbed.chaos.live.picture import Picture

WRITES: Final = "writes"
SILENT_S: Final = 1.0
"""Time without an acknowledgement after which no writes are taken; longer if few are sent."""
EXPECTED: Final = 8
"""Sends that must be expected in that time."""


class Health:
    def __init__(self, picture: Picture, groups: Mapping[str, Iterable[str]], rate: float) -> None:
        """`rate` is the number of messages sent a second; 0 if unknown."""
        self._picture = picture
        self._groups = groups
        self._silent_s = max(SILENT_S, EXPECTED / rate) if rate else float("inf")
        self._ok = 0
        self._last_s: float | None = None
        """Time of the last acknowledgement; None while there is no load."""

    def update(
        self, now_s: float, machines: Mapping[str, Mapping[str, Any]], ok: int, *, loaded: bool
    ) -> None:
        """Update the feed. `machines` is the feed's value; `ok` counts acknowledgements; `loaded`
        is true while sends are expected."""
        if not loaded or self._last_s is None or ok != self._ok:
            self._last_s, self._ok = now_s if loaded else None, ok
        since_s, mark = None, "well"
        problems = [*troubles(machines, self._groups), *self._picture.other_faults()]
        if problems:
            mark = "degraded"
        if self._last_s is not None and now_s - self._last_s >= self._silent_s:
            since_s, mark = round(self._last_s, 3), "no writes"
        elif loaded or self._picture.is_open(WRITES):
            self._picture.enter(WRITES, "taken" if loaded else "none due", now_s)
        if since_s is not None:
            self._picture.enter(WRITES, "outage", since_s)
        self._picture.feed.put("health", {"mark": mark, "since": since_s, "why": problems})


def troubles(
    machines: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the problems in words: `b1 down`, `no master`."""
    problems = []
    for name, machine in machines.items():
        if machine["state"] != "running":
            problems.append(f"{name} {machine['state']}")
        elif machine["cut"]:
            problems.append(f"{name} cut off")
    for group, nodes in groups.items():
        group_machines = [machines[node] for node in nodes if node in machines]
        if not any(
            machine["role"] == "master" and machine["state"] == "running"
            for machine in group_machines
        ):
            problems.append("no master" if len(groups) == 1 else f"no master in {group}")
    return problems
