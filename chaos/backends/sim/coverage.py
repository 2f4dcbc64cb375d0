"""Coverage of a simulated run: named points, by role and time; and the numbers of events.

Points are the marks in the node's code and the events that it logs. They tell the generator which
plans reached something new, and the crash-point mode how many places there are to die in.
"""

from collections.abc import Mapping
from typing import Any, Final

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.simulation import LogLine, Simulation

TICK_NS: Final = SECOND // 2


class Coverage:
    """Watches one simulation from its beginning."""

    def __init__(self, simulation: Simulation, roles: Mapping[str, str]) -> None:
        self._simulation = simulation
        self._roles = roles
        self._points: dict[str, dict[int, None]] = {}
        self._disk_events: dict[str, dict[int, int]] = {}
        simulation.on_disk.append(self._saw_disk)
        simulation.on_mark.append(self._reached)
        simulation.on_log.append(self._logged)

    def facts(self) -> dict[str, Any]:
        """Return facts for the record. `points`: name and role -> half seconds in which it was
        reached.

        `disk_events`: node -> half seconds, each with the number of changes of its disk in it.
        """
        timeline = self._simulation.timeline
        return {
            "events": timeline.events,
            "checkpoints": list(timeline.checkpoints),
            "disk_events": {
                node: list(map(list, counts.items())) for node, counts in self._disk_events.items()
            },
            "points": {name: list(ticks) for name, ticks in sorted(self._points.items())},
        }

    def _reached(self, node: str, mark: str) -> None:
        role = self._roles.get(node)
        if role:
            tick = self._simulation.timeline.now // TICK_NS
            self._points.setdefault(f"{mark} {role}", {})[tick] = None

    def _logged(self, line: LogLine) -> None:
        self._reached(line.node, line.event)

    def _saw_disk(self, host: str, *_event: object) -> None:
        if host in self._roles:
            tick = self._simulation.timeline.now // TICK_NS
            counts = self._disk_events.setdefault(host, {})
            counts[tick] = counts.get(tick, 0) + 1
