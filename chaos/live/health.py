"""How the cluster is, apart from what the run is doing: well, degraded, or taking no writes.

Keys of the feed: `health` for the mark and the banner; spans of the row `writes` for outages.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocketbed.chaos.live.picture import Picture

WRITES: Final = "writes"
SILENT_S: Final = 1.0
"""Without an acknowledgement for so long no writes are taken; longer where few are sent."""
EXPECTED: Final = 8
"""Sends that would have been made meanwhile."""


class Health:
    def __init__(self, picture: Picture, groups: Mapping[str, Iterable[str]], rate: float) -> None:
        """`rate` is how many messages a second are sent; 0: nobody knows."""
        self._picture = picture
        self._groups = groups
        self._silent_s = max(SILENT_S, EXPECTED / rate) if rate else float("inf")
        self._ok = 0
        self._last_s: float | None = None
        """When messages were last acknowledged; None while there is no load."""

    def look(
        self, now_s: float, machines: Mapping[str, Mapping[str, Any]], ok: int, *, loaded: bool
    ) -> None:
        """`machines` as the feed has them; `ok` counts acknowledgements; `loaded`: some are due."""
        if not loaded or self._last_s is None or ok != self._ok:
            self._last_s, self._ok = now_s if loaded else None, ok
        since_s, mark = None, "well"
        why = troubles(machines, self._groups)
        if why:
            mark = "degraded"
        if self._last_s is not None and now_s - self._last_s >= self._silent_s:
            since_s, mark = round(self._last_s, 3), "no writes"
        elif loaded or self._picture.has(WRITES):
            self._picture.enter(WRITES, "taken" if loaded else "none due", now_s)
        if since_s is not None:
            self._picture.enter(WRITES, "outage", since_s)
        self._picture.feed.put("health", {"mark": mark, "since": since_s, "why": why})


def troubles(
    machines: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Iterable[str]]
) -> list[str]:
    """What is wrong, in words: `b1 down`, `no master`."""
    found = []
    for name, machine in machines.items():
        if machine["state"] != "running":
            found.append(f"{name} {machine['state']}")
        elif machine["cut"]:
            found.append(f"{name} cut off")
    for group, nodes in groups.items():
        ours = [machines[node] for node in nodes if node in machines]
        if not any(one["role"] == "master" and one["state"] == "running" for one in ours):
            found.append("no master" if len(groups) == 1 else f"no master in {group}")
    return found
