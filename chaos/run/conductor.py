"""Carries a plan out: start the cluster and the load, fault, heal, read everything back, stop.

Phases: set-up; fault phase (the steps); recovery phase (all is healed and the load goes on); drain
(the load has ended, everything has to come into order); final reading; clean stop. A wait that does
not end in its time is recorded as a stall, and the run goes on as far as it can.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Protocol

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.evidence.node_events import REFUSALS
from rocketbed.chaos.evidence.record import (
    ACKS_FILE,
    TRACE_FILE,
    UNREAD,
    Crash,
    Promise,
    RunRecord,
    Stall,
)
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import consumer_names, listener_names, producer_names
from rocketbed.chaos.run.actions import Actions
from rocketbed.chaos.run.api import Backend, Program
from rocketbed.chaos.run.chores import chores_of
from rocketbed.chaos.run.group import Member, groups_of
from rocketbed.chaos.run.listeners import GROUPS, ORDERED, RETRIES, TOPIC, Hearing, levels_text
from rocketbed.chaos.run.load import (
    ClientFailure,
    LoadControl,
    ProducerProgram,
    come_and_go,
    topic_names,
)
from rocketbed.chaos.run.members import Members
from rocketbed.chaos.run.order import LOOK_S, SET_UP_S, Order
from rocketbed.chaos.run.reading import (
    Reading,
    follow_queues,
    group_name,
    read_everything,
)
from rocketbed.chaos.run.required_checks import is_indexed, required_checks
from rocketbed.chaos.run.schedule import Schedule
from rocketbed.chaos.run.targets import Resolver
from rocketbed.chaos.run.topics import RunTopics

SAMPLE_S: Final = 0.5
READ_S: Final = 60.0
BY_DISK: Final = (
    *("StoreFailed", "OSError", "ConfigFileError", "BadStoreDirectory"),
    "KeptFileUnwritable",
)
"""Reasons with which a node ends if its disk fails, is full, or gives it no descriptor."""
OCCASIONS: Final = ("before the faults", "after the faults")
"""Occasions of visits."""


class Attendant(Protocol):
    """Watches a run, injects faults by hand, and decides when to end it."""

    needs: tuple[str, ...]
    """Capabilities that it makes use of."""

    async def attend(self, conductor: "Conductor") -> None:
        """Attend a run. Called when the run begins, cancelled when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Companions of a run: notified of events, given read access, or in control of it."""

    say: Callable[[str], None]
    """Called with each event as it happens, in lines for people."""
    visit: Callable[[str, Backend], Awaitable[None]] | None = None
    """Called with the occasion: before the load, when everything serves, and again before the
    stop."""
    attendant: Attendant | None = None
    """If there is one, the fault phase goes on after the last step, until `end_faults`."""


class Conductor:
    """Conductor of one run. `record` is complete when `run` returns."""

    def __init__(self, plan: Plan, backend: Backend, company: Company) -> None:
        self.plan = plan
        self.backend = backend
        names = topic_names(plan)
        self.control = LoadControl(topics=names[: len(names) - plan.producers.late])
        self._topics = RunTopics(plan, backend, self.control)
        self.members = Members(plan.shape, backend, look=self._note_ends)
        self._chores = chores_of(plan, backend, self.control, self.members, self._topics)
        self.record = RunRecord(
            scenario=plan.name,
            backend=backend.name,
            seed=plan.seed,
            promise=Promise(
                flush=plan.shape.flush, replication=plan.shape.repl, copies=plan.shape.copies
            ),
            expect=plan.expect,
            groups=plan.shape.group_nodes(),
            ordered_topics=names if plan.producers.ordered else [],
        )
        reading = Reading(
            self.control,
            backend.history,
            backend.nameservers(),
            self.control.topics,
            self.members.at,
        )
        self._reading = reading
        self.programs: dict[str, Program] = {}
        for name in producer_names(plan):
            self.programs[name] = ProducerProgram(
                plan, self.control, backend.history, backend.nameservers(), name
            )
        self._groups = groups_of(plan)
        readers: dict[str, Program] = {
            name: Member(reading, group, name, plan)
            for group in self._groups
            for name in group.members
        }
        for name in consumer_names(plan):
            reader = readers.get(name) or partial(follow_queues, reading, name)
            if plan.producers.late or plan.producers.deleted or plan.producers.stay_s:
                reader = partial(come_and_go, reader, plan, self.control, name)
            self.programs[name] = reader
        self._hearing = Hearing(plan, self.control, backend.history, backend.nameservers())
        self.programs |= self._hearing.programs()
        self.order = Order(
            plan=plan,
            backend=backend,
            members=self.members,
            control=self.control,
            reading=reading,
            groups=[group.number for group in self._groups],
            hearing=self._hearing,
            stall=self._stall,
        )
        self.resolver = self._make_resolver(Random(f"{plan.seed}/targets"))
        random = Random(f"{plan.seed}/actions")
        self.actions = Actions(self.resolver, random, self.programs)
        self.schedule = Schedule(plan, self.control, self.actions, self.resolver, self._tell)
        self._company = company
        self._fault_phase_scope = trio.CancelScope()
        self._is_healed = False
        """True after all faults. A node that met one may still end by it: it is started again."""
        self._serving: set[str] = set()
        """Nameservers that were up when the recovery phase began."""
        self.phase = "set up"
        """One of `set up`, `faults`, `recovery`, `drain`, `reading`, `stopping`."""
        self.faults_s = 0.0
        """Length of the fault phase in seconds, once it is over."""
        self.zero_ns = backend.now_ns()
        """Backend time at which the load began."""
        self._told_s = 0.0
        """Moment of the last line."""

    async def run(self, directory: Path) -> RunRecord:
        """Go through all phases and write the results into the directory. Raises `HostError`.

        Nothing is done if a capability is missing that the plan depends on.
        """
        missing = [
            f"all of {self.plan.name}, which needs {need}: {reason}"
            for need in self.plan.needs
            if (reason := self.backend.lacks(need)) is not None
        ]
        if missing:
            self.schedule.skipped += missing
            await self._collect(directory)
            return self.record
        kind = "simulated" if self.backend.name == "sim" else "real"
        seconds = self.plan.faults_s + self.plan.recovery_s
        self._company.say(
            f"{self.plan.name}, seed {self.plan.seed}: about {seconds:.0f} {kind} seconds;"
            f" the times below are {kind}"
        )
        async with trio.open_nursery() as nursery:
            self.actions.nursery = nursery
            if self._company.attendant is not None:
                nursery.start_soon(self._company.attendant.attend, self)
            if await self._set_up():
                nursery.start_soon(self._sample)
                if self.backend.elects:
                    nursery.start_soon(self.members.follow_elections)
                if self.plan.producers.late:
                    nursery.start_soon(self._topics.make_late)
                for chore in self._chores:
                    nursery.start_soon(chore.run)
                await self._fault_phase()
                nursery.start_soon(self._empty_refusing)
                await self._recovery_phase()
                await self._drain()
                await self._read()
                if self._company.visit is not None:
                    await self._company.visit(OCCASIONS[1], self.backend)
            await self._stop()
            nursery.cancel_scope.cancel()
        await self._collect(directory)
        return self.record

    def now_s(self) -> float:
        return (self.backend.now_ns() - self.zero_ns) / 1e9

    def end_faults(self) -> None:
        self._fault_phase_scope.cancel()

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._tell(phase)

    def _tell(self, line: str, moment: float | None = None) -> None:
        """Say what happened at a moment, by default now. What began before the last line's moment
        is dated now, so that the lines are in order."""
        if moment is not None and moment < self._told_s:
            line = f"{line} (begun at {moment:.2f} s)"
            moment = None
        self._told_s = self.now_s() if moment is None else moment
        self._company.say(f"{self._told_s:7.2f} s  {line}")

    # --- phases

    async def _set_up(self) -> bool:
        """Start everything, create topics, wait for slaves. Return whether that succeeded."""
        backend, members = self.backend, self.members
        for name in self.plan.shape.nameserver_names:
            await backend.start(name, {})
        with trio.move_on_after(SET_UP_S):
            await members.start_all()
            for node in members.nodes:
                if not await members.wait_serving(node, SET_UP_S):
                    self._stall("set-up", node, "it does not serve after its first start")
                    return False
            while True:
                try:
                    await self._topics.make(self._reading.topics)
                    queues = self.plan.producers.queues
                    self.record.topics = dict.fromkeys(self._reading.topics, queues)
                    if self.plan.listeners.count:
                        await self._topics.make([TOPIC], self.plan.listeners.queues)
                    break
                except ClientFailure:
                    await trio.sleep(LOOK_S)
            for group in self.plan.shape.group_nodes():
                while not await self._is_in_sync(group):
                    await trio.sleep(LOOK_S)
            if self._company.visit is not None:
                await self._company.visit(OCCASIONS[0], backend)
            self.zero_ns = backend.now_ns()
            self.record.facts["zero_ns"] = self.zero_ns
            for name, program in self.programs.items():
                backend.start_client(name, program)
            return True
        self._stall("set-up", "cluster", f"it was not ready within {SET_UP_S:g} s")
        return False

    async def _is_in_sync(self, group: str) -> bool:
        sample = await self.backend.observe(self.members.leader(group))
        return sample is not None and sample.in_sync >= self.plan.shape.brokers

    async def _fault_phase(self) -> None:
        self._enter("faults")
        if self._company.attendant is None:
            self._fault_phase_scope.deadline = trio.current_time() + self.plan.faults_s
        with self._fault_phase_scope:
            await self.schedule.run()
            await trio.sleep_forever()
        self.faults_s = round(self.schedule.now_s(), 6)
        # The schedule first: a step that is still under way would break what was just healed.
        await self.schedule.close()
        self._is_healed = True
        await self._heal_everything()
        if self.plan.broken:
            await self._leave_broken(self.plan.broken)
        self._serving = self._nameservers_up()
        self.control.leaving = False
        self.record.recovery_ns = self.backend.now_ns()

    async def _leave_broken(self, target: str) -> None:
        machines = self.record.facts["left_broken"] = await self.actions.leave_broken(target)
        if machines:
            self._tell(f"powercut {','.join(machines)} until the recovery phase is over")
        else:
            self.schedule.missed.append(
                f"powercut {target} in the recovery phase: nobody was there"
            )

    async def _heal_everything(self) -> None:
        await self.actions.recover()
        self.backend.history.event(Function.NEMESIS, "", "heal", {"step": "everything"})

    async def _recovery_phase(self) -> None:
        self._enter("recovery")
        began_s = self.now_s()
        await self.order.masters()
        await self._topics.make_rest()
        away = frozenset(n for n in self.members.nodes if self.backend.state(n) == "down")
        for chore in self._chores:
            if unfinished := await chore.finish(away):
                self._stall("chores", unfinished, "some node does not know of it")
        patient = self.backend.name != "sim"
        if patient:
            await self.order.producers(self.record.recovery_ns)
        recovered_s = self.now_s() - began_s
        # Judged is the last third of the recovery phase, all of it after the recovery itself.
        recovery_s = max(self.plan.recovery_s, recovered_s * 3 / 2 if patient else 0.0)
        await trio.sleep(max(recovery_s - recovered_s, 0.0))
        if patient:
            await self.order.producers(self.backend.now_ns() - round(recovery_s / 2 * 1e9))
        for name in producer_names(self.plan):
            last = self.control.acknowledged_ns.get(name, 0)
            quiet_s = (self.backend.now_ns() - last) / 1e9
            if last < self.record.recovery_ns or quiet_s > recovery_s / 2:
                self._stall(
                    "producers", name, f"no send was acknowledged in the last {quiet_s:.1f} s"
                )
        self.control.producing = False

    async def _drain(self) -> None:
        """Wait until producers have ended and every slave has all of its master's log.

        Nodes that were left without power have to come back now. A nameserver stays down, since
        with an empty table it knows no topic until the nodes have registered.
        """
        self._enter("drain")
        if not set(self.members.nodes).isdisjoint(self.record.facts.get("left_broken", ())):
            await self.actions.recover()
        # Producers first: replicas of a log that still grows are never equal.
        tellers = listener_names(self.plan)[:1]
        await self.order.ends(
            [*producer_names(self.plan), *tellers], "producers", "sends still under way"
        )
        await self.order.replicas()
        await self.order.readers()
        if not self.backend.elects:
            await self.order.routes()
        if self.plan.listeners.count:
            await self.order.listeners()
        self.control.consuming = False
        await self.order.ends(listener_names(self.plan), "listeners", "messages still in hand")

    async def _read(self) -> None:
        self._enter("reading")
        limit_s = self.order.limit_s(READ_S)
        reason = f"not everything was read within {limit_s:.0f} s"
        with trio.move_on_after(limit_s) as scope:
            try:
                numbers = [group.number for group in self._groups]
                await read_everything(self._reading, numbers, self.backend.world)
                if self.plan.listeners.count:
                    await self._hearing.read_dead_letters(self.backend.world)
            except ClientFailure as error:
                reason = f"the final read failed: {error}"
                scope.cancel()
                await trio.lowlevel.checkpoint()  # where the cancellation shows in the scope
        if scope.cancelled_caught:
            self._stall("drain", UNREAD, reason)

    async def _stop(self) -> None:
        self._enter("stopping")
        self.record.stop_ns = self.backend.now_ns()
        if self._is_healed:
            self._note_nameservers()
        self._is_healed = False
        self.control.producing = self.control.consuming = False
        self._note_ends()
        for name in self.programs:
            await self.backend.kill_client(name)
        # Followers first: they end with all of the master's log, and none can be elected meanwhile.
        order = [
            *(node for node in self.members.nodes if not self.members.is_leader(node)),
            *self.members.leaders().values(),
        ]
        for node in order:
            if self.backend.state(node) == "down":
                continue
            if await self.members.stop(node):
                self.record.stopped_cleanly.append(node)
            else:
                self._stall("stop", node, "it did not end after SIGTERM")
        for name in self.plan.shape.nameserver_names:
            if self.backend.state(name) != "down":
                await self.backend.stop(name)

    async def _collect(self, directory: Path) -> None:
        collected = await self.backend.collect(directory)
        collected.trace.save(directory / TRACE_FILE)
        if collected.acks is not None:
            collected.acks.save(directory / ACKS_FILE)
        record = self.record
        record.stores = collected.stores
        record.images = collected.images
        record.digest = collected.digest
        record.marks = collected.marks
        record.leaders = self.members.leaders()
        names = {group.number: group_name(group.number) for group in self._groups}
        record.consumer_groups = {name: number for number, name in names.items()}
        record.filters = {
            names[group.number]: list(group.tags) for group in self._groups if group.tags
        }
        record.followers = dict(self._reading.followers)
        if self.plan.listeners.count:
            record.listeners = dict(GROUPS)
            record.listener_tries = RETRIES + 1
            record.ordered_listeners = [GROUPS[ORDERED]]
        record.delay_levels = levels_text(self.plan)
        record.indexed = is_indexed(self.plan, self.schedule.done)
        record.ids = {name: member.broker_id for name, member in self.members.members.items()}
        record.end_ns = self.backend.now_ns()
        record.steps = [str(step) for step in self.schedule.done]
        record.skipped = self.schedule.skipped
        # a foreign node reports less, so only the requested checks are due
        if "target" in collected.facts:
            checks: tuple[str, ...] = ()
        else:
            checks = required_checks(self.plan, self.backend.name)
        # Checks that depend on the steps cannot show anything without them, nor in too short a
        # time.
        scenario_checks = () if record.skipped or self.plan.quick else self.plan.expect.checks
        record.expect = replace(self.plan.expect, checks=(*checks, *scenario_checks))
        record.facts |= {
            **collected.facts,
            "missed": self.schedule.missed,
            "vain": [str(step) for step in self.schedule.vain],
            "burst": self.plan.producers.burst,
            "quick": self.plan.quick,
            "late_topics": self.plan.producers.late,
            "counts": dict(self.control.counts),
            "outages": [list(outage) for outage in self.control.outages],
        }
        reserved = self.plan.shape.settings.get("fileReservedTime")
        if reserved is not None:
            seconds = int(reserved) * 3600 / self.backend.wall_rate
            record.facts["retention_ns"] = round(seconds * 1e9)
            record.facts["retention_round_ns"] = self._round_ns()
        background = self.plan.background
        record.facts["link_ns"] = round((background.link_ms + background.link_jitter_ms) * 1e6)
        record.facts["disk_ns"] = round(max(background.disk_ms.values(), default=1.0) * 1e6)
        disks = {node: round(each_ms * 1e6) for node, each_ms in background.disk_ms.items()}
        record.facts["disks_ns"] = disks
        record.save(directory)

    # --- inside

    def _round_ns(self) -> int:
        """Return nanoseconds between two rounds of retention, by the run's clock; 0 if it pauses at
        some hours."""
        settings = self.plan.shape.settings
        hours = set(settings.get("deleteWhen", "04").replace(",", ";").split(";"))
        if {hour.zfill(2) for hour in hours} < {f"{hour:02}" for hour in range(24)}:
            return 0
        return round(int(settings.get("cleanResourceInterval", "10000")) * 1e6)

    def _make_resolver(self, random: Random) -> Resolver:
        return Resolver(self.plan, self.members, random)

    async def _sample(self) -> None:
        """Record samples of the nodes, and the nodes that have ended on their own."""
        while True:
            self._note_ends()
            for node in self.members.nodes:
                sample = await self.backend.observe(node)
                if sample is not None:
                    self.members.note(node, sample)
                    self.backend.history.event(Function.NODE, node, "sample", sample.as_row())
            await trio.sleep(SAMPLE_S)

    async def _empty_refusing(self) -> None:
        """Empty the refused slaves, as an operator does who reads what nodes report; only after the
        faults, at the pace of the samples."""
        while True:
            await trio.sleep(SAMPLE_S)
            if self._is_healed:
                await self.actions.repairs.empty_refusing()

    def _note_nameservers(self) -> None:
        """Record each nameserver that ended after the faults, before it was stopped."""
        for name in sorted(self._serving - self._nameservers_up()):
            self._note_end(name, self.backend.end_reason(name) or "it said no reason")

    def _nameservers_up(self) -> set[str]:
        names = self.plan.shape.nameserver_names
        return {name for name in names if self.backend.state(name) != "down"}

    def _note_ends(self) -> None:
        for node, member in self.members.members.items():
            if member.should_run and not member.busy and self.backend.state(node) == "down":
                member.should_run = False
                reason = self.backend.end_reason(node)
                # As expected after a failure of its disk, or killed by a fault.
                expected = not reason or reason.startswith(BY_DISK)
                permit = self.actions.leave.of(node, reason) if expected else None
                if permit is not None:
                    if reason:
                        self._note_end(node, reason, permit.cause, permit.begin_ns)
                    if self._is_healed and self.actions.nursery is not None:
                        member.claim()
                        self.actions.nursery.start_soon(self.members.launch, node)
                elif node in self.actions.nodes.damaged and reason.startswith(REFUSALS):
                    self._note_end(node, reason, "it was damaged", self.actions.nodes.damaged[node])
                else:
                    self._note_end(node, reason)

    def _note_end(self, node: str, reason: str, cause: str = "", cause_ns: int = 0) -> None:
        now_ns = self.backend.now_ns()
        crash = Crash(node=node, time_ns=now_ns, reason=reason, cause=cause, cause_ns=cause_ns)
        self.record.crashes.append(crash)

    def _stall(self, wait: str, subject: str, reason: str) -> None:
        self.record.stalls.append(Stall(what=wait, subject=subject, reason=reason))
        self._tell(f"stalled: {subject}: {reason}")


MakeConductor = Callable[[Plan, Backend, Company], Conductor]
"""Creates the conductor of a run on a backend; nothing has begun yet."""
