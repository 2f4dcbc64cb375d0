"""Attends a run of the testbed: shows in a feed what it does, and connects its buttons to the page.

It reads counters and the history's events, never the history's file, and queries nodes more often
than the run does only while a browser is connected.
"""

from typing import Any, Final

import trio

from rocketbed.chaos.evidence.history import Event, HistoryWriter, Row
from rocketbed.chaos.evidence.lag import Lag
from rocketbed.chaos.live.console import Console, session_plan
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.health import Health
from rocketbed.chaos.live.meter import Meter
from rocketbed.chaos.live.picture import Picture
from rocketbed.chaos.live.server import Refused
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Sample
from rocketbed.chaos.run.conductor import Conductor

LOOK_S: Final = 0.1
ASK_S: Final = 0.2
"""Interval of queries to a node while a browser is connected."""
POINT_S: Final = 0.5
LOADED: Final = ("faults", "recovery")
"""Phases in which all producers send."""


class RunAttendant:
    """Attendant of one run: an `Attendant` for the run and a `Desk` for the page."""

    needs: tuple[str, ...] = ("net.cut", "disk.powercut")

    def __init__(self, plan: Plan, feed: Feed, backend: str) -> None:
        """`backend` is the page's description of where the run takes place."""
        self.feed = feed
        self.picture = Picture(feed)
        self._plan = plan
        self._conductor: Conductor | None = None
        self._console: Console | None = None
        self._nursery: trio.Nursery | None = None
        self._recovering: set[str] = set()
        shape, load = plan.shape, plan.producers
        self._health = Health(self.picture, shape.group_nodes(), load.count * load.rate)
        promise = f"{shape.flush} flush, {shape.repl} replication"
        feed.put(
            "run",
            {
                "mode": "run",
                "title": plan.name,
                "seed": plan.seed,
                "backend": backend,
                "promise": promise + (f", {shape.copies} copies" if shape.repl == "sync" else ""),
                "nodes": shape.nodes,
                "nameservers": shape.nameserver_names,
                "groups": shape.group_nodes(),
            },
        )
        feed.put("phase", {"name": "set up", "zero": None})

    async def attend(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._console = Console(conductor)
        history = conductor.backend.history
        lag = self._lag(history)

        def take(entry: Event | Row) -> None:
            if isinstance(entry, Row):
                lag.add(entry)
                return
            if entry.kind == "topic_leaving":
                lag.remove_topic(history.topic_id(entry.fields["topic"]))
            self._take(entry)

        history.listener = take
        try:
            async with trio.open_nursery() as self._nursery:
                for node in conductor.members.nodes:
                    self._nursery.start_soon(self._ask, conductor, node)
                self._nursery.start_soon(self._count, conductor, lag)
                while True:
                    self._look(conductor, self._console)
                    await trio.sleep(LOOK_S)
        finally:
            self._nursery = None
            history.listener = None
            self._look(conductor, self._console)

    async def press(self, action: str, name: str) -> str:
        """Press a button. Raises `Refused`; if the backend fails, the run ends as failed."""
        nursery, console = self._nursery, self._console
        if nursery is None or console is None:
            raise Refused("nothing is running")
        is_done = trio.Event()
        answers: list[str | Refused] = []

        async def do() -> None:
            try:
                answers.append(await console.press(action, name))
            except Refused as error:
                answers.append(error)
            finally:
                is_done.set()

        nursery.start_soon(do)
        await is_done.wait()
        answer = answers[0] if answers else Refused("the run has ended")
        if isinstance(answer, Refused):
            raise answer
        return answer

    def end_faults(self) -> bool:
        """End the fault phase; False if it is not running."""
        if self._conductor is None or self._conductor.phase != "faults":
            return False
        self._conductor.end_faults()
        return True

    def session(self) -> Plan:
        return self._plan if self._conductor is None else session_plan(self._plan, self._conductor)

    # --- inside

    def _take(self, event: Event) -> None:
        if event.kind == "sample":
            self.picture.stand(event.node, Sample.of_row(event.fields))
            return
        if event.kind in ("start", "recovered"):
            change = self._recovering.add if event.kind == "start" else self._recovering.discard
            change(event.node)
        self.picture.take(event)
        if self._console is not None:
            self._console.note(event)

    async def _ask(self, conductor: Conductor, node: str) -> None:
        while True:
            if self.feed.readers:
                self.picture.stand(node, await conductor.backend.observe(node))
            await trio.sleep(ASK_S)

    def _lag(self, history: HistoryWriter) -> Lag:
        shape = self._plan.shape
        return Lag(
            {
                history.node_id(node): history.node_id(group)
                for group, nodes in shape.group_nodes().items()
                for node in nodes
            }
        )

    async def _count(self, conductor: Conductor, lag: Lag) -> None:
        meter = Meter(conductor.control.counts, conductor.control.latencies_ns)
        while True:
            await trio.sleep(POINT_S)
            if conductor.phase not in ("set up", "reading", "stopping"):
                point = meter.point(conductor.backend.now_ns() / 1e9)
                self.picture.add("point", {**point, "lag": lag.messages})

    def _look(self, conductor: Conductor, console: Console) -> None:
        feed, backend = self.feed, conductor.backend
        machines: dict[str, dict[str, Any]] = {}
        now_s = backend.now_ns() / 1e9
        feed.put("clock", round(now_s, 1))
        zero_s = None if conductor.phase == "set up" else round(conductor.zero_ns / 1e9, 3)
        if (feed.get("phase") or {}).get("name") != conductor.phase:
            self.picture.tell(now_s, conductor.phase, "phase")
            feed.put("phase", {"name": conductor.phase, "zero": zero_s})
        for name in console.machines:
            member = conductor.members.members.get(name)
            state = backend.state(name)
            is_master = conductor.members.is_leader(name)
            machines[name] = {
                "kind": "nameserver" if member is None else "node",
                "group": "" if member is None else member.group,
                "role": "nameserver" if member is None else "master" if is_master else "slave",
                "state": state,
                "cut": console.is_cut(name),
                "buttons": console.reasons(name),
            }
            feed.put(f"machine:{name}", machines[name])
            kind: str = state
            if state == "running":
                role = "master" if is_master else "slave"
                activity = "recovering" if name in self._recovering else role
                kind = "serving" if member is None else activity
            self.picture.enter(name, kind, now_s)
        links = sorted(conductor.actions.effects.links().items())
        kinds = [[first, second, "cut" if link.cut else "slow"] for (first, second), link in links]
        feed.put("links", kinds)
        counts = conductor.control.counts
        loaded = conductor.phase in LOADED
        self._health.update(now_s, machines, counts.get("ok", 0), loaded=loaded)
        feed.put("counts", {name: counts.get(name, 0) for name in ("ok", "weak", "fail", "info")})
