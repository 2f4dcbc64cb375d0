"""Shows a cluster of `rocketbed cluster` that runs on its own, and connects buttons to the page.

The cluster continues when the watch ends, and others may change it meanwhile: roles are read again
from its file, states from its processes. Faults of what a single machine's processes share (disk,
network) cannot be injected for one of them.
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from rocketbed.chaos.backends.process.samples import Asker
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.health import Health
from rocketbed.chaos.live.meter import Meter
from rocketbed.chaos.live.notebook import Notebook
from rocketbed.chaos.live.picture import Picture
from rocketbed.chaos.live.sender import Sender
from rocketbed.chaos.live.server import LiveServer, Refused
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.lifecycle import claimed, load
from rocketbed.cluster.plan import FILE, ClusterError
from rocketbed.host.child import STOPPING
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import World
from rocketbed.world.real import real_world

LOOK_S: Final = 0.2
POINT_S: Final = 0.5
SHARED: Final = (
    "the members of a local cluster share this system's {}: rocketbed chaos run --live breaks it"
)


class Watch:
    """Watch of one cluster; a `Desk` for the page."""

    def __init__(self, cluster: LocalCluster, feed: Feed, world: World) -> None:
        self.feed = feed
        self.picture = Picture(feed)
        self.notebook = Notebook(cluster.plan)
        self._cluster = cluster
        self._world = world
        self._asker = Asker(world)
        self._began = trio.current_time()
        self._locks = {name: trio.Lock() for name in cluster.names}
        self._promoting = trio.Lock()
        self._answering: set[str] = set()
        self._leading: dict[str, str] = {}
        """With failover: node of each group that last reported to lead, while it answers."""
        self._kinds: dict[str, str] = {}
        self._states: dict[str, str] = {}
        """States at the last look; a query may take a call to a daemon."""
        self._plan_time_ns = 0
        self._plan_time_ns = self._plan_changed()
        plan = cluster.plan
        feed.put(
            "run",
            {
                "mode": "watch",
                "title": cluster.directory.name,
                "promise": f"{plan.flush} flush, {'sync' if plan.sync else 'async'} replication,"
                f" nameserver {cluster.nameserver_address}",
                "nodes": cluster.nodes,
                "nameservers": [name for name in cluster.names if name not in cluster.nodes],
                "groups": self._groups(),
            },
        )
        feed.put("phase", {"name": "watching", "zero": 0})
        self._sender: Sender | None = None
        self._health = Health(self.picture, self._groups(), 0)

    async def run(self, rate: float | None) -> None:
        """Watch until another cluster takes its place; with `rate` also send messages."""
        sender = None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._asker.run)
            if rate is not None:
                sender = Sender(self._world, self._cluster.nameserver_address, rate)
                self._sender = sender
                self._health = Health(self.picture, self._groups(), rate)
                nursery.start_soon(sender.run)
            for name in self._cluster.nodes:
                nursery.start_soon(self._ask, name)
            nursery.start_soon(self._count, sender)
            while self._is_the_same():
                self._look()
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

    async def press(self, action: str, name: str) -> str:
        """Press a button. Raises `Refused`."""
        if name not in self._locks:
            raise Refused(f"unknown member {name!r}")
        async with self._locks[name]:
            self._states[name] = self._state(name)
            reason = self._reasons(name).get(action, f"unknown action {action!r} here")
            if reason:
                raise Refused(f"{action} {name}: {reason}")
            try:
                act: Callable[[str], Any] = getattr(self, f"_{action}")
                await act(name)
                self.notebook.save(self._cluster.directory)
            except (RocketbedError, OSError) as error:
                raise Refused(f"{action} {name}: {error}") from error
        return f"{action} {name}"

    # --- buttons

    async def _kill(self, name: str) -> None:
        self._begin("kill", name)
        self._cluster.kill(name)
        await self._cluster.wait_ended(name)

    async def _pause(self, name: str) -> None:
        self._begin("pause", name)
        self._cluster.pause(name)

    async def _resume(self, name: str) -> None:
        self._cluster.resume(name)
        self._end(("pause",), name)

    async def _start(self, name: str) -> None:
        with claimed(self._cluster.directory):
            self._cluster.launch(name)
        self._end(("kill", "pause"), name)

    async def _promote(self, name: str) -> None:
        async with self._promoting:
            self._begin("promote", name, lasts=False)
            try:
                with claimed(self._cluster.directory):
                    if self._cluster.plan.failover:
                        await self._cluster.hand_over(name)
                    else:
                        await self._cluster.promote(name)
            except ClusterError:
                self.notebook.steps.pop()
                raise

    def _begin(self, verb: str, name: str, *, lasts: bool = True) -> None:
        step, now_s = f"{verb} {name}", self._now_s()
        self.notebook.begin(verb, name, now_s)
        self.picture.begin_fault(step, verb, [name], now_s, lasts=lasts, by_hand=True)
        self.picture.tell(now_s, step, verb, by_hand=True)

    def _end(self, verbs: tuple[str, ...], name: str) -> None:
        now_s = self._now_s()
        self.notebook.end(verbs, name, now_s)
        for verb in verbs:
            self.picture.end_faults(now_s, step=f"{verb} {name}")
        self.picture.tell(now_s, f"over: {verbs[0]} {name}", "heal", by_hand=True)

    def _reasons(self, name: str) -> dict[str, str]:
        """Return why each button cannot be pressed; empty if it can."""
        state, member = self._states[name], self._cluster.plan.member(name)
        not_running = "" if state == "running" else f"it is {state}"
        promote = not_running or ("it is the master" if self._role(name) == "master" else "")
        return {
            "kill": "it is down" if state == "down" else "",
            "start": "" if state == "down" else "it runs",
            "pause": not_running,
            "resume": "" if state == "paused" else "it is not paused",
            "promote": promote if member.is_node else "a nameserver has no master",
            "cut": SHARED.format("network"),
            "heal": SHARED.format("network"),
            "powercut": SHARED.format("disk"),
        }

    # --- looking

    def _is_the_same(self) -> bool:
        """Read the cluster's file again if it changed; True if it is still the same cluster."""
        changed = self._plan_changed()
        if changed == self._plan_time_ns or self._promoting.locked():
            return True
        try:
            cluster = load(self._cluster.directory)
        except ClusterError:
            return not (self._cluster.directory / FILE).exists()  # without it no cluster runs
        places = {name: cluster.address(name) for name in cluster.names}
        if places != {name: self._cluster.address(name) for name in self._cluster.names}:
            return False
        self._plan_time_ns, self._cluster = changed, cluster
        return True

    def _look(self) -> None:
        now_s = self._now_s()
        self.feed.put("clock", round(now_s, 1))
        machines: dict[str, dict[str, Any]] = {}
        for name in self._cluster.names:
            member = self._cluster.plan.member(name)
            state = self._states[name] = self._state(name)
            role = self._role(name)
            value = {
                "kind": "node" if member.is_node else "nameserver",
                "group": member.broker if member.is_node else "",
                "role": role,
                "state": state,
                "cut": False,
                "buttons": self._reasons(name),
            }
            self.feed.put(f"machine:{name}", value)
            machines[name] = value
            kind = state
            if state == "running":
                answers = name in self._answering
                kind = "serving" if not member.is_node else role if answers else "recovering"
            self.picture.enter(name, kind, now_s)
            if self._kinds.get(name) not in (None, kind):
                self.picture.tell(now_s, f"{name} is {kind}", "")
            self._kinds[name] = kind
        ok = 0 if self._sender is None else self._sender.counts["ok"]
        self._health.update(now_s, machines, ok, loaded=self._sender is not None)

    async def _ask(self, name: str) -> None:
        while True:
            sample = None
            if self._states.get(name) == "running":
                host, _, port = self._cluster.address(name).rpartition(":")
                sample = await self._asker.sample((host, int(port)))
            change = self._answering.discard if sample is None else self._answering.add
            change(name)
            broker = self._cluster.plan.member(name).broker
            if sample is not None and sample.is_master:
                self._leading[broker] = name
            elif self._leading.get(broker) == name:
                del self._leading[broker]
            self.picture.stand(name, sample)
            await trio.sleep(LOOK_S)

    async def _count(self, sender: Sender | None) -> None:
        """Add points of the load: our own, or the growth of the masters' message counts."""
        counts: Counter[str] = Counter()
        meter = Meter(counts, deque())
        if sender is not None:
            meter = Meter(sender.counts, sender.latencies_ns)
        totals: dict[str, int] = {}
        async with self._cluster.admin() as admin:
            while True:
                await trio.sleep(POINT_S)
                if sender is None:
                    previous, totals = totals, {}
                    for broker in self._cluster.plan.brokers:
                        with suppress(RocketbedError, ValueError):  # no answer, or no leader
                            address = self._cluster.address(self._master(broker))
                            info = await admin.runtime_info(address)
                            total = totals[broker] = int(info.get("putMessageTimesTotal", ""))
                            counts["ok"] += max(total - previous.get(broker, total), 0)
                self.picture.add("point", meter.point(self._now_s()))

    def _role(self, name: str) -> str:
        member = self._cluster.plan.member(name)
        if not member.is_node:
            return "nameserver"
        return "master" if name == self._master(member.broker) else "slave"

    def _master(self, broker: str) -> str:
        """Return the master of a group; empty while no node leads."""
        plan = self._cluster.plan
        return self._leading.get(broker, "") if plan.failover else plan.master(broker).name

    def _groups(self) -> dict[str, list[str]]:
        plan = self._cluster.plan
        return {broker: [member.name for member in plan.nodes(broker)] for broker in plan.brokers}

    def _state(self, name: str) -> str:
        pid = self._cluster.pid(name)
        if pid is None:
            return "down"
        return "paused" if _is_stopped(pid) else "running"

    def _plan_changed(self) -> int:
        try:
            return (self._cluster.directory / FILE).stat().st_mtime_ns
        except OSError:
            return self._plan_time_ns

    def _now_s(self) -> float:
        return trio.current_time() - self._began


def watch(
    directory: Path, say: Callable[[str], None], *, port: int = 0, rate: float | None = None
) -> Path | None:
    """Serve the page of a cluster until Ctrl-C; return the file of recorded steps, if there are
    any.

    Raises `ClusterError` if there is no cluster, `LiveError` if the page cannot be served.
    """

    async def main() -> Path | None:
        world = real_world("live")
        feed = Feed()
        cluster = load(directory)
        desk = Watch(cluster, feed, world)
        server = LiveServer(world, feed, desk)
        address = await server.listen(port)
        is_over = False
        with trio.open_signal_receiver(*STOPPING) as signals:
            async with trio.open_nursery() as nursery:

                async def wait_signal() -> None:
                    await anext(signals)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(server.serve)
                nursery.start_soon(wait_signal)
                say(f"live page: {address}")
                await desk.run(rate)
                is_over = True
                nursery.cancel_scope.cancel()
        saved = desk.notebook.save(cluster.directory) if desk.notebook.steps else None
        if is_over:
            raise ClusterError(f"{directory} now holds another cluster: start watch again")
        return saved

    return trio.run(main)


def _is_stopped(pid: int) -> bool:
    """True if a process was stopped by a signal, or frozen with its container."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        rows = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["T"] or any(map(_is_frozen, rows))


def _is_frozen(row: str) -> bool:
    """True if the group in a line of `/proc/PID/cgroup` is frozen (version 1 or 2)."""
    _, controllers, path = row.split(":", 2)
    root = Path("/sys/fs/cgroup")
    if controllers not in ("freezer", ""):
        return False
    place = root / "freezer" if controllers else root
    name, word = ("freezer.state", "FROZEN") if controllers else ("cgroup.freeze", "1")
    try:
        return (place / path.lstrip("/") / name).read_text(encoding="ascii").strip() == word
    except OSError:
        return False
