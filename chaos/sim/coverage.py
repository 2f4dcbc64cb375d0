"""What a run of the simulation reached: named points, by role and time; and how much happened.

Points are the marks in the node's code and the events that it logs. They tell the generator which
plans went somewhere new, and the crash-point mode how many places there are to die in.
"""

from collections.abc import Callable
from typing import Any, Final

from chaos.sim.clock import SECOND
from chaos.sim.process import Process
from chaos.sim.simulation import LogLine, Simulation

TICK_NS: Final = SECOND // 2


class Coverage:
    """Watches one simulation from its beginning."""

    def __init__(self, simulation: Simulation, role: Callable[[str], str]) -> None:
        self._simulation = simulation
        self._role = role
        self._points: dict[str, dict[int, None]] = {}
        self._disk_events: dict[str, int] = {}
        simulation.on_mark.append(self._reached)
        simulation.on_log.append(self._logged)
        simulation.on_end.append(self._ended)

    def facts(self) -> dict[str, Any]:
        """For the record. `points`: name and role -> half seconds in which it was reached.

        `disk_events`: node -> changes of its disk in its last incarnation.
        """
        timeline = self._simulation.timeline
        return {
            "events": timeline.events,
            "checkpoints": list(timeline.checkpoints),
            "disk_events": dict(self._disk_events),
            "points": {name: list(ticks) for name, ticks in sorted(self._points.items())},
        }

    def _reached(self, node: str, mark: str) -> None:
        role = self._role(node)
        if role:
            tick = self._simulation.timeline.now // TICK_NS
            self._points.setdefault(f"{mark} {role}", {})[tick] = None

    def _logged(self, line: LogLine) -> None:
        self._reached(line.node, line.event)

    def _ended(self, process: Process) -> None:
        if self._role(process.host.name):
            self._disk_events[process.host.name] = process.disk.events
