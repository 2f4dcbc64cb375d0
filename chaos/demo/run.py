"""One trial from beginning to end.

Order: a directory of its own; a cluster of real processes tied to this one; producers, kills and
samples side by side; everything read back; slaves caught up; a clean stop; only then the checks, on
the history file and the directories. Whatever happens on the way, no process is left behind.
"""

import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from chaos.checkers import CheckResult, check_trial
from chaos.demo.checks import OCCASIONS, Endings, check_run, old_messages, outages, read_back
from chaos.demo.drain import Drain
from chaos.demo.load import Counts, Load
from chaos.demo.old_store import OldStore, check_served, copy_store, read_old_store
from chaos.demo.plan import MASTER, DemoPlan, PlanError, beside
from chaos.demo.samples import Sampler
from chaos.demo.strikes import Striker
from chaos.demo.verdict import DemoVerdict
from chaos.history import History, HistoryWriter, read_history
from chaos.process.cluster import ClusterError, LocalCluster
from chaos.process.member import ProcessError
from chaos.process.plan import FILE, NAMESERVER
from rocketbed import __version__
from rocketbed.client.errors import ClientError
from rocketbed.remoting.errors import RemotingError
from rocketbed.world.api import World
from rocketbed.world.real import real_world

WORK: Final = "cluster"
"""Folder of the cluster below the report's."""
HISTORY: Final = "history.rbh"
RATE_MIN: Final = 200
"""Acknowledged messages a second below which a trial counts as stalled."""
PATIENCE_S: Final = 90.0
"""What is granted beside that rate."""
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "60000",
    "flushIntervalConsumeQueue": "3600000",
    "registerNameServerPeriod": "10000",
    "rbMetadataSync": "1000",
    "fileReservedTime": "876000",
    "cleanFileForciblyEnable": "false",
    "diskSpaceWarningLevelRatio": "95",
}
"""For every node. Small files, so that several of each kind come to be; the durable mark is not
raised while a node runs, so that each recovery has all of the log to read and can be hit; nothing
is deleted for its age or a full disk, since a trial's data may be old and its disk nearly full."""


class Show(Protocol):
    """Where a trial tells how it goes."""

    def say(self, line: str) -> None:
        """Something happened."""
        ...

    def tick(self, phase: str, at_s: float, counts: Counts, total: int) -> None:
        """A second passed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a trial is told."""

    plan: DemoPlan
    report: Path
    """Directory of the report; the cluster runs in a folder of it."""
    keep: bool = False
    """Keep the nodes' directories, their logs and the history also when all is well."""
    store: Path | None = None
    """A store directory to begin with, which is copied."""


BeforeChecks = Callable[[LocalCluster], None]


class Demo:
    """A trial that is being run."""

    def __init__(
        self, options: DemoOptions, show: Show, before_checks: BeforeChecks | None
    ) -> None:
        self.options = options
        self.plan = options.plan
        self.show = show
        self.verdict = DemoVerdict(seed=options.plan.seed)
        self.work = options.report / WORK
        self.phase = "setting up"
        self._before_checks = before_checks
        self._began_s = 0.0
        self._world: World = real_world("demo")
        self._old: OldStore | None = None

    # --- setting up

    def prepare(self) -> LocalCluster:
        """Make directories and the cluster's files. Raises `PlanError`, `ClusterError`."""
        if self.options.store is not None:
            self._old = read_old_store(self.options.store)
            self.show.say(
                f"{self.options.store}: {self._old.messages} messages in {len(self._old.queues)}"
                f" queues, log up to {self._old.log_end}"
            )
            self.plan = beside(self.plan, self._old.topics)
        make_work_directory(self.work)
        cluster = LocalCluster.create(
            self.work,
            slaves=2,
            sync=True,
            in_sync_replicas=2,
            flush=self.plan.flush,
            settings={**SETTINGS, **(self._old.settings if self._old else {})},
            tied=True,
        )
        if self._old is not None:
            copy_store(self._old.source, cluster.store_directory(MASTER))
        return cluster

    # --- running

    async def run(self, cluster: LocalCluster) -> DemoVerdict:
        """Run, check, and say what it amounts to. Cancelled, it kills what it started."""
        self._began_s = trio.current_time()
        path = self.work / HISTORY
        endings = Endings()
        with HistoryWriter(path, lambda: int(self.now_s() * 1e9)) as history:
            load = Load(self._world, self.plan, history, cluster.nameserver_address)
            striker = Striker(self.plan, cluster, history, load, now_s=self.now_s, say=self.say)
            drain = Drain(self._world, self.plan, cluster, history)
            sampler = Sampler(cluster, load.counts, now_s=self.now_s)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tick, load.counts)
                    await self._live(cluster, load, striker, drain, sampler, endings)
                    nursery.cancel_scope.cancel()
            finally:
                striker.note_ends()
                await end_all(cluster)
        written_s = self.now_s()
        self.phase = "checking"
        self.say("checking")
        if self._before_checks is not None:
            self._before_checks(cluster)
        await trio.to_thread.run_sync(
            self._check, cluster, striker, endings, drain, abandon_on_cancel=True
        )
        self._tell(cluster, load, striker, sampler, written_s)
        return self.verdict

    async def _live(
        self,
        cluster: LocalCluster,
        load: Load,
        striker: Striker,
        drain: Drain,
        sampler: Sampler,
        endings: Endings,
    ) -> None:
        """Everything while processes run. What goes wrong is noted in the verdict."""
        try:
            self.phase = "starting"
            await striker.start_all()
            await self._make_topics(cluster)
            if not await drain.wait_caught_up():
                raise ClusterError("the slaves do not follow their master")
            await self._serve_old(cluster, OCCASIONS[0])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sampler.run)
                await self._write(load, striker)
                await self._read(cluster, load, drain)
                striker.note_ends()
                endings.caught_up = not striker.unexpected and await drain.wait_caught_up()
                nursery.cancel_scope.cancel()
            self.phase = "stopping"
            await self._stop(cluster, striker, endings)
        except* (ClusterError, ProcessError, ClientError, RemotingError) as group:
            self.verdict.error = "; ".join(map(str, flat(group)))
            self.say(f"failed: {self.verdict.error}")

    async def _make_topics(self, cluster: LocalCluster) -> None:
        async with cluster.admin() as admin:
            for topic in self.plan.topics:
                await admin.create_topic(topic.name, queues=topic.queues)

    async def _serve_old(self, cluster: LocalCluster, when: str) -> None:
        if self._old is not None:
            self.phase = "reading old messages"
            served = await check_served(self._world, cluster, self._old, when)
            self.say(f"{served} of {self._old.messages} old messages served {when}")

    async def _write(self, load: Load, striker: Striker) -> None:
        """Load and strikes, until all is acknowledged or patience ends."""
        self.phase = "writing"
        limit_s = PATIENCE_S + self.plan.messages / RATE_MIN
        with trio.move_on_after(limit_s) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                nursery.start_soon(striker.run)
        if scope.cancelled_caught:
            self.verdict.stalled = (
                f"after {limit_s:.0f} s only {load.counts.acknowledged} of {self.plan.messages}"
                " messages were acknowledged"
            )
        self.say(
            f"{load.counts.acknowledged} messages acknowledged"
            f" ({load.counts.unknown} unknown, {load.counts.refused} refused on the way)"
        )

    async def _read(self, cluster: LocalCluster, load: Load, drain: Drain) -> None:
        self.phase = "reading back"
        count = await drain.read_back()
        self.say(f"{count} messages read back")
        await drain.ask_keys(load.keys)
        await self._serve_old(cluster, OCCASIONS[1])

    async def _stop(self, cluster: LocalCluster, striker: Striker, endings: Endings) -> None:
        """Stop every node by SIGTERM, and look whether it ended as it should."""
        for name in [*reversed(cluster.nodes), NAMESERVER]:
            wrong = await striker.stop(name)
            if wrong:
                endings.unclean.append(wrong)
            if name in cluster.nodes and name not in striker.ended:
                endings.stopped += 1
                if (cluster.store_directory(name) / "abort").exists():
                    endings.unclean.append(f"{name} left its abort file")
        self.say("stopped")

    # --- checking

    def _check(
        self, cluster: LocalCluster, striker: Striker, endings: Endings, drain: Drain
    ) -> None:
        path = self.work / HISTORY
        directories = {name: str(cluster.store_directory(name)) for name in cluster.nodes}
        checks: list[CheckResult] = check_trial(
            path, directories, MASTER, stopped_cleanly=endings.all_clean
        )
        history = _read_history(path)
        checks.append(read_back(history))
        if self._old is not None:
            checks.append(old_messages(self._old))
        checks += check_run(
            self.plan,
            starts=striker.starts,
            kills=striker.kills,
            unexpected=striker.unexpected,
            endings=endings,
            keys=drain.keys,
        )
        outages(history, striker.kills)
        self.verdict.checks = checks

    def _tell(
        self,
        cluster: LocalCluster,
        load: Load,
        striker: Striker,
        sampler: Sampler,
        written_s: float,
    ) -> None:
        """Gather what the report shows."""
        loss = next((c for c in self.verdict.checks if c.title == "2.3 allowed loss"), None)
        counts = load.counts
        self.verdict.facts = {
            "version": __version__,
            "machine": machine(),
            "when": show_time(self._world.clock.wall_ms()),
            "seconds": {"running": round(written_s, 1), "in_all": round(self.now_s(), 1)},
            "options": {
                "messages": self.plan.messages,
                "flush": self.plan.flush,
                "store": None if self.options.store is None else str(self.options.store),
            },
            "loss": {
                "allowed": 0,
                "lost": None if loss is None or not loss.examined else loss.found,
                "acknowledged": counts.acknowledged,
            },
            "counts": {
                "acknowledged": counts.acknowledged,
                "weak": counts.weak,
                "refused": counts.refused,
                "unknown": counts.unknown,
            },
            "starts": [start.as_row() for start in striker.starts],
            "kills": [kill.as_row() for kill in striker.kills],
            "nodes": {name: samples.as_row() for name, samples in sampler.nodes.items()},
            "load": sampler.load.as_row(),
            "holds": [[self._since(start), self._since(end)] for start, end in load.holds],
            "old": None if self._old is None else self._old.as_row(),
        }

    # --- inside

    def now_s(self) -> float:
        """Seconds since the cluster began to start."""
        return trio.current_time() - self._began_s

    def _since(self, moment: float) -> float:
        return round(moment - self._began_s, 3)

    def say(self, line: str) -> None:
        """Show that something happened."""
        self.show.say(f"{self.now_s():6.2f} s  {line}")

    async def _tick(self, counts: Counts) -> None:
        while True:
            self.show.tick(self.phase, self.now_s(), counts, self.plan.messages)
            await trio.sleep(1)


async def run_demo(
    options: DemoOptions, show: Show, *, before_checks: BeforeChecks | None = None
) -> DemoVerdict:
    """Run one trial and write `verdict.json` into the report's directory.

    `before_checks` is called when all nodes have stopped and before anything is checked, so that a
    test can plant a defect. When cancelled it ends its processes and removes what they wrote.
    Raises `PlanError` for options that cannot be, `ClusterError`.
    """
    demo = Demo(options, show, before_checks)
    cluster = demo.prepare()
    try:
        verdict = await demo.run(cluster)
    except* trio.Cancelled:
        if not options.keep:
            shutil.rmtree(demo.work, ignore_errors=True)
        raise
    kept = options.keep or verdict.exit_code != 0
    verdict.facts["kept"] = str(demo.work) if kept else None
    if not kept:
        shutil.rmtree(demo.work)
    text = json.dumps(verdict.as_row(), indent=1)
    (options.report / "verdict.json").write_text(text + "\n", encoding="utf-8")
    return verdict


def make_work_directory(work: Path) -> None:
    """An empty directory for the cluster, in place of an earlier trial's. Raises `PlanError`."""
    if (work / FILE).exists():
        earlier = LocalCluster.load(work)
        running = [name for name in earlier.names if earlier.pid(name) is not None]
        if running:
            raise PlanError(f"{work}: {', '.join(running)} of another run are running there")
        shutil.rmtree(work)
    try:
        work.mkdir(parents=True)
    except FileExistsError:
        raise PlanError(f"{work} exists and is no cluster: choose another --report") from None
    except OSError as exc:
        raise PlanError(f"{work} cannot be made: {exc}") from exc


async def end_all(cluster: LocalCluster) -> None:
    """SIGKILL whatever still runs, and wait for it, also when cancelled."""
    with trio.CancelScope(shield=True):
        for name in cluster.names:
            if cluster.pid(name) is not None:
                cluster.kill(name)
            await cluster.wait_ended(name)


def machine() -> dict[str, Any]:
    """Where the trial ran."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "node": platform.machine(),
    }


def show_time(wall_ms: int) -> str:
    """A wall time in UTC, to the second."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")


def flat(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """All errors of a group, however deep."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _read_history(path: Path) -> History:
    """The history, or an empty one: that it cannot be read is a finding of the checks."""
    try:
        return read_history(path)
    except (OSError, ValueError, TypeError, KeyError):
        return History()
