"""Kills and restarts of a trial, and what was seen of each.

A kill proves something only if it hit what it was aimed at. So each start is watched: the node
writes `abort` with its process id before it begins to recover and logs `store.recovered` when it
has. A kill between the two met a recovery; whether it did is read off the files afterwards.
"""

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from chaos.demo.load import Load
from chaos.demo.plan import MASTER, DemoPlan, Strike, Target
from chaos.history import Function, HistoryWriter
from chaos.process.cluster import LocalCluster
from chaos.process.plan import NAMESERVER

LOOK_S: Final = 0.001
"""Pause between looks at `abort`: a recovery takes at least tens of milliseconds."""
TRIES: Final = 3
"""A recovery that was over before the kill is tried again so often."""
GONE_S: Final = 10.0
STOP_S: Final = 20.0
_RECOVERED: Final = re.compile(r" store\.recovered (.*)$", re.MULTILINE)
_FIELD: Final = re.compile(r'(\w+)=("[^"]*"|\S+)')

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Start:
    """One start of a node. Times in seconds since the trial began."""

    node: str
    reason: str
    """`first`, or what it was started after."""
    abort_found: bool
    """Whether `abort` lay there when it was started."""
    at_s: float
    serving_s: float | None = None
    """From the start of the process until clients could use it."""
    recovery: dict[str, str] = field(default_factory=dict)
    """Fields of `store.recovered`: seconds, records, scanned_from, end, clean."""
    killed: str = ""
    """The kill that ended it, if one did."""

    def as_row(self) -> dict[str, object]:
        """As JSON fields."""
        return {
            "node": self.node,
            "reason": self.reason,
            "abort_found": self.abort_found,
            "at_s": round(self.at_s, 3),
            "serving_s": None if self.serving_s is None else round(self.serving_s, 3),
            "recovery_s": self.recovery_s,
            "records": self.count("records"),
            "scanned_bytes": self.scanned,
            "killed": self.killed,
        }

    @property
    def served(self) -> bool:
        """Whether clients could use it."""
        return self.serving_s is not None

    @property
    def recovery_s(self) -> float | None:
        """How long the store recovered, by its own clock; None when it did not finish."""
        text = self.recovery.get("seconds")
        return None if text is None else float(text)

    @property
    def scanned(self) -> int | None:
        """Bytes of log that recovery read."""
        start, end = self.count("scanned_from"), self.count("end")
        return None if start is None or end is None else end - start

    def count(self, name: str) -> int | None:
        """A number of the recovery's report."""
        text = self.recovery.get(name, "")
        return int(text) if text.isdigit() else None


@dataclass(slots=True, kw_only=True)
class Kill:
    """One SIGKILL."""

    node: str
    target: Target
    at_s: float
    in_flight: int
    """Messages that had been sent and not answered at that moment."""
    abort_left: bool = False
    """Whether `abort` lay there afterwards."""
    hit: bool = False
    """Whether it met what it was aimed at: writers, or a recovery."""
    outage_s: float | None = None
    """Until the next acknowledgement."""

    def as_row(self) -> dict[str, object]:
        """As JSON fields."""
        return {
            "node": self.node,
            "target": str(self.target),
            "at_s": round(self.at_s, 3),
            "in_flight": self.in_flight,
            "abort_left": self.abort_left,
            "hit": self.hit,
            "outage_s": None if self.outage_s is None else round(self.outage_s, 3),
        }


class Striker:
    """Starts, kills and starts again."""

    def __init__(
        self,
        plan: DemoPlan,
        cluster: LocalCluster,
        history: HistoryWriter,
        load: Load,
        *,
        now_s: Callable[[], float],
        say: Say,
    ) -> None:
        self.starts: list[Start] = []
        self.kills: list[Kill] = []
        self.unexpected: list[str] = []
        """Ends of nodes that nobody asked for."""
        self.ended: list[str] = []
        """Who they were."""
        self._down = set(cluster.names)
        """Members that do not run because they have not been started, or were killed."""
        self._plan = plan
        self._cluster = cluster
        self._history = history
        self._load = load
        self._now_s = now_s
        self._say = say
        self._log_ends: dict[str, int] = {}

    async def start_all(self) -> None:
        """The first start. Raises `ClusterError`."""
        await self._cluster.start(NAMESERVER)
        self._down.discard(NAMESERVER)
        starts = [self._launch(node, "first") for node in self._cluster.nodes]
        for start in starts:
            await self._wait_serving(start)

    async def run(self) -> None:
        """All strikes of the plan, each when its time has come."""
        limits = self._plan.limits()
        for strike, limit in zip(self._plan.strikes, limits, strict=False):
            self._load.limit(limit)
            await self._load.wait_writing(strike.at)
            await self._strike(strike)
        self._load.limit(limits[-1])

    async def stop(self, node: str) -> str:
        """SIGTERM, and wait; what was wrong with its end, or nothing."""
        self.note_ends()
        if node in self._down:
            return ""
        self._down.add(node)
        self._history.event(Function.NODE, node, "stop")
        self._cluster.signal(node, signal.SIGTERM)
        with trio.move_on_after(STOP_S):
            code = await self._cluster.wait_ended(node)
            return "" if code == 0 else f"{node} ended with code {code}"
        return f"{node} did not end within {STOP_S:g} s of SIGTERM"

    def note_ends(self) -> None:
        """Look for members that have ended though nobody asked them to."""
        for name in self._cluster.names:
            if name not in self._down and self._cluster.pid(name) is None:
                self._down.add(name)
                self.ended.append(name)
                self.unexpected.append(f"{name} ended by itself: {self._cluster.log_tail(name)}")

    async def _strike(self, strike: Strike) -> None:
        is_master = strike.node == MASTER
        kill = await self._kill(
            strike.node, Target.MASTER_WRITING if is_master else Target.SLAVE_WRITING
        )
        kill.hit = kill.in_flight > 0
        await trio.sleep(strike.down_s)
        reason = f"killed with {kill.in_flight} messages in flight"
        if strike.target is Target.RECOVERY:
            reason = await self._strike_recovery(strike)
        await self._wait_serving(self._launch(strike.node, reason))

    async def _strike_recovery(self, strike: Strike) -> str:
        """Start a node and kill it while it recovers; why it is started then."""
        for _ in range(TRIES):
            start = self._launch(strike.node, "to be killed while it recovers")
            if not await self._recovery_began(start):
                self.unexpected.append(f"{strike.node} ended before it recovered")
            kill = await self._kill(strike.node, Target.RECOVERY)
            start.killed = "in recovery"
            self._read_recovery(start)
            kill.hit = not start.recovery
            if kill.hit:
                return "killed while it recovered"
        return "killed too late to meet its recovery"

    async def _recovery_began(self, start: Start) -> bool:
        """Wait until the node has written its process id into `abort`; False if it ended."""
        path = self._cluster.store_directory(start.node) / "abort"
        pid = self._cluster.pid(start.node)
        if pid is None:
            return False
        while True:
            try:
                if path.read_text(encoding="ascii", errors="replace").split()[:1] == [str(pid)]:
                    return True
            except FileNotFoundError:
                pass
            if self._cluster.pid(start.node) != pid:
                return False
            await trio.sleep(LOOK_S)

    async def _kill(self, node: str, target: Target) -> Kill:
        kill = Kill(
            node=node,
            target=target,
            at_s=self._now_s(),
            in_flight=self._load.counts.under_way,
        )
        what = "kill-in-recovery" if target is Target.RECOVERY else "kill"
        self._history.event(Function.NEMESIS, node, what, {"in_flight": kill.in_flight})
        self._cluster.kill(node)
        self._down.add(node)
        with trio.fail_after(GONE_S):
            code = await self._cluster.wait_ended(node)
        if code != -signal.SIGKILL:
            self.unexpected.append(f"{node} ended with code {code} before it was killed")
        kill.abort_left = (self._cluster.store_directory(node) / "abort").exists()
        self.kills.append(kill)
        self._say(f"killed {node} ({target}), {kill.in_flight} messages in flight")
        return kill

    def _launch(self, node: str, reason: str) -> Start:
        log = self._cluster.log_path(node)
        self._log_ends[node] = log.stat().st_size if log.exists() else 0
        start = Start(
            node=node,
            reason=reason,
            abort_found=(self._cluster.store_directory(node) / "abort").exists(),
            at_s=self._now_s(),
        )
        self._cluster.launch(node)
        self._down.discard(node)
        self._history.event(Function.NODE, node, "start", {"reason": reason})
        self.starts.append(start)
        return start

    async def _wait_serving(self, start: Start) -> None:
        await self._cluster.wait_serving(start.node)
        start.serving_s = self._now_s() - start.at_s
        self._read_recovery(start)
        self._history.event(Function.NODE, start.node, "ready", dict(start.recovery))
        self._say(
            f"{start.node} serves {start.serving_s:.2f} s after its start"
            f" (recovery {start.recovery.get('seconds', '?')} s,"
            f" {start.recovery.get('records', '?')} records)"
        )

    def _read_recovery(self, start: Start) -> None:
        """Take the report of this start from the node's log, if it is there."""
        data = self._cluster.log_path(start.node).read_bytes()[self._log_ends[start.node] :]
        found = _RECOVERED.search(data.decode("utf-8", "replace"))
        if found is not None:
            fields: list[tuple[str, Any]] = _FIELD.findall(found[1])
            start.recovery = {name: value.strip('"') for name, value in fields}
