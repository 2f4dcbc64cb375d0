"""The cluster of one test, from its first start to the judgement; the body acts on it.

A `Conductor` whose fault phase is the body of a test. The cluster is up and its slaves in sync when
the body begins. If the body asked for checks, all faults are ended after it, everything comes into
order, is read back and stopped, as in every trial: only logs at rest can be judged.
"""

import itertools
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import trio

from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.generator import GENERATED, Generate, draw_steps
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import At, Step, parse_step
from rocketbed.chaos.plan.targets import check_target
from rocketbed.chaos.pytest_plugin.errors import ClusterFailed, FaultMissing
from rocketbed.chaos.pytest_plugin.operator import Operator
from rocketbed.chaos.pytest_plugin.spec import Script
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.conductor import Company, Conductor
from rocketbed.chaos.run.load import ClientFailure
from rocketbed.chaos.run.reading import Reading
from rocketbed.chaos.run.schedule import Held, Schedule
from rocketbed.chaos.run.targets import Resolver

T = TypeVar("T")

BODY: Final = "test"
"""The body's machine, as a target of links."""
HARNESS: Final = "harness"
LOOK_S: Final = 0.05
SETTLE_S: Final = 60.0
FAULT_CLASSES: Final = tuple(name for name in GENERATED if name != "clients")
"""Classes of faults of a fault phase by default, without `clients`: the only client is the test
itself."""
LOST: Final = ("powercut", "wipe", "crash")
"""Verbs after which a node's log may be shorter than its slaves'."""


class BodyResolver(Resolver):
    """Resolver that also knows the body's machine: `test`, or `clients:all`."""

    async def _part(self, part: str, excluded: list[str]) -> list[str]:
        if part == BODY or part.startswith("clients:"):
            return [HARNESS]
        return await super()._part(part, excluded)


class Stage(Conductor):
    """Conductor of one test. `script` is the test; the outcome is written there."""

    def __init__(self, plan: Plan, backend: Backend, company: Company, *, script: Script) -> None:
        super().__init__(plan, backend, company)
        self.topics: list[str] = []
        """Topics with recorded sends: only there every body is known, and reads are judged."""
        self._created: set[str] = set()
        self.reading = self._reading = Reading(
            self.control, backend.history, backend.nameservers(), self.topics, self.members.at
        )
        self.body_schedule = self.schedule = self._schedule(plan)
        self.operator = Operator(self, script.failover_s)
        self.groups: dict[str, int] = {}
        """Consumer groups by name -> number in the history."""
        self.script = script
        self._step_numbers = itertools.count(1)
        self._phase_numbers = itertools.count(1)

    async def run(self, directory: Path) -> RunRecord:
        """Set up the cluster, run the body, and end as it asked for."""
        script = self.script
        for need in self.plan.needs:
            if (reason := self.backend.lacks(need)) is not None:
                script.skipped = f"{need} is missing on {self.backend.name}: {reason}"
                return self.record
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            script.token, script.scope = trio.lowlevel.current_trio_token(), nursery.cancel_scope
            if not await self._set_up():
                script.failure = ClusterFailed(self.record.stalls[-1].reason)
            else:
                self.body_schedule.begin_now()
                nursery.start_soon(self._sample)
                nursery.start_soon(self.operator.run)
                if self.backend.elects:
                    nursery.start_soon(self.members.follow_elections)
                await script.perform(self)
            self._note_ends()
            script.has_sent = bool(self.control.counts)
            if script.wants_judgement:
                await self._finish()
            elif script.failure is None:
                for crash in self.record.crashes:
                    if not crash.cause:
                        text = f"{crash.node} ended by itself: {crash.reason}"
                        script.failure = ClusterFailed(text)
                        break
            nursery.cancel_scope.cancel()
        script.done = [str(step.to_the_millisecond()) for step in self.schedule.done]
        if script.wants_judgement:
            await self._collect(directory)
        return self.record

    async def _finish(self) -> None:
        """Heal everything, let it come into order, read it back, stop it."""
        with self.operator.paused():
            await self._heal_everything()
            self.record.recovery_ns = self.backend.now_ns()
            await self.order.masters()
            await self._drain()
            await self._read()
            await self._stop()

    # --- steps

    def check(self, step: Step) -> None:
        """Raise `ScenarioError` for an impossible target, `FaultMissing` for a fault that the
        backend lacks."""
        for target in filter(None, (step.target, step.second)):
            parts = [part for part in target.split(",") if part != BODY]
            if any(part.startswith("clients:") for part in parts) and not step.form.has_second:
                raise ScenarioError(f"{step.action()}: the test itself cannot be {step.verb}ed")
            for part in parts:
                check_target(part, self.plan, list(self.resolver.hit))
        for need in step.needs:
            if (reason := self.backend.lacks(need)) is not None:
                raise FaultMissing(
                    f"{step.action()} needs {need}, which is missing on {self.backend.name}:"
                    f" {reason} (the mark rb_needs({need!r}) asks for it, and skips the test"
                    " where it cannot be had)"
                )

    async def begin(self, step: Step) -> Held | None:
        """Carry out a step of the body, unless a replay leaves it out."""
        self.check(step)
        number = next(self._step_numbers)
        if number in self.script.choice.left_out:
            self.script.steps[number] = step
            await trio.lowlevel.checkpoint()
            return None
        async with self.operator.lock:
            held = await self.body_schedule.begin(step, by_hand=True)
        self.script.steps[number] = step if held is None else held.concrete
        if held is not None and held.done.wait is not None:
            self.nursery.start_soon(self._wait_struck, held, held.done.wait)
        elif held is not None and step.for_s is not None:
            self.nursery.start_soon(self._end_later, held, step.for_s)
        return held

    async def end(self, held: Held) -> None:
        for name in held.done.names if held.step.verb in LOST else ():
            await self.operator.replace_lost(name)
        async with self.operator.lock:
            await self.body_schedule.end(held, by_hand=True)

    async def fault_phase(self, seconds: float, classes: tuple[str, ...] | None = None) -> None:
        """Inject faults drawn from the seed for this time, then end all of them."""
        number = next(self._phase_numbers)
        texts = self.script.choice.fault_phases.get(number)
        if texts is None:
            wishes = Generate(faults_s=seconds, classes=classes or FAULT_CLASSES)
            steps = draw_steps(f"{self.plan.name}/{number}", self.plan, wishes)
            texts = tuple(re.sub(r"\be(\d+)\b", rf"w{number}e\1", text) for text in steps)
        self.script.fault_phases[number] = texts
        plan = replace(self.plan, steps=tuple(map(parse_step, texts)), faults_s=seconds)
        base_s = self.body_schedule.now_s()
        schedule = self._schedule(plan)
        with self.operator.paused(), trio.move_on_after(seconds):
            await schedule.run()
            await trio.sleep_forever()
        with trio.CancelScope(shield=True):
            await self.recover()
        for step in schedule.done:
            moved = At(round(step.at_s + base_s, 6))
            self.body_schedule.done.append(replace(step, trigger=moved))
        self.record.skipped += schedule.skipped

    async def recover(self) -> None:
        """End every fault and start everything that is down."""
        await trio.lowlevel.checkpoint()  # there may be nothing to do
        await self._heal_everything()
        self.body_schedule.held.clear()

    # --- waiting

    async def settled(self, timeout_s: float = SETTLE_S) -> None:
        """Wait until every running node serves and has all of its master's log.

        Raises a `ClusterFailed` with what is missing.
        """
        await trio.lowlevel.checkpoint()  # it may be settled
        reason: str | None = "nothing was checked"
        with trio.move_on_after(timeout_s):
            while (reason := await self._unsettled()) is not None:
                await trio.sleep(LOOK_S)
        if reason is not None:
            raise ClusterFailed(f"the cluster is not settled after {timeout_s:g} s: {reason}")

    async def _unsettled(self) -> str | None:
        for group in self.plan.shape.group_nodes():
            leader = self.members.leader(group)
            master = await self.backend.observe(leader)
            if master is None:
                return f"{leader}, the master, is {self._condition(leader)}"
            if master.dispatched < master.written:
                return f"{leader} has dispatched {master.dispatched} of {master.written} bytes"
            running = [
                node for node in self.members.followers(group) if self.backend.state(node) != "down"
            ]
            if master.in_sync < 1 + len(running):
                return f"{master.in_sync} copies keep up, {1 + len(running)} are running"
            for node in running:
                sample = await self.backend.observe(node)
                if sample is None:
                    return f"{node} is {self._condition(node)}"
                if not sample.is_following:
                    return f"{node} does not follow {leader}"
                if min(sample.written, sample.dispatched) < master.written:
                    return f"{node} has {sample.written} of {master.written} bytes"
        return None

    def _condition(self, node: str) -> str:
        state = self.backend.state(node)
        return "running but not answering" if state == "running" else state

    # --- clients

    async def host(self, client: AbstractAsyncContextManager[T]) -> T:
        """Enter a client for the rest of the test, whichever task asks for it."""
        entered: T = await self.nursery.start(_keep, client, trio.Event())
        return entered

    async def lodge(
        self, client: AbstractAsyncContextManager[T]
    ) -> tuple[T, Callable[[], Awaitable[None]]]:
        """Enter a client for a caller that is not a task of this loop. Return it and the function
        that leaves it."""
        leaving, closed = trio.Event(), trio.Event()

        async def leave() -> None:
            leaving.set()
            await closed.wait()

        return await self.nursery.start(_keep, client, leaving, closed), leave

    def judge_topic(self, topic: str) -> None:
        """Have a topic's recorded messages judged, although others may write to it too."""
        if topic not in self.topics:
            self.topics.append(topic)
            self.record.shared_topics.append(topic)

    def outlook(self) -> str:
        """Return why no node may take messages now, and what would help: for errors of waiting."""
        parts: list[str] = []
        for group, leader in self.members.leaders().items():
            down = [
                node
                for node in self.members.followers(group)
                if self.backend.state(node) != "running"
            ]
            not_running = ", ".join(f"{node} is {self.backend.state(node)}" for node in down)
            if self.backend.state(leader) == "running":
                parts += [not_running] if not_running else []
                continue
            text = f"{leader}, the master, is {self.backend.state(leader)}"
            if self.backend.elects:
                text += "; another one leads if enough of those that have everything are up"
            elif self.script.failover_s is None:
                text += " and nobody promotes another: cluster.promote() or cluster.restart() does"
            elif not_running:
                text += f", and no slave is promoted while one of them is missing: {not_running}"
            parts.append(text)
        held = ", ".join(held.step.action() for held in self.body_schedule.held)
        parts += [f"faults in force: {held}"] if held else []
        return "; ".join(parts) or "all nodes are up"

    async def ensure_topic(self, topic: str, queues: int | None = None) -> None:
        """Create a topic, unless the test did already."""
        if topic in self._created:
            return
        self._created.add(topic)
        await self.insist(lambda: self._topics.make([topic], queues), f"making topic {topic}")

    async def insist(
        self, action: Callable[[], Awaitable[T]], action_text: str, timeout_s: float = SETTLE_S
    ) -> T:
        """Repeat an action until it succeeds. Raises a `ClusterFailed` with the last reason."""
        reason = "no answer"
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    return await action()
                except ClientFailure as error:
                    reason = str(error)
                await trio.sleep(LOOK_S)
        raise ClusterFailed(f"{action_text} did not work for {timeout_s:g} s: {reason}")

    # --- inside

    def _make_resolver(self, random: Random) -> Resolver:
        return BodyResolver(self.plan, self.members, random)

    def _schedule(self, plan: Plan) -> Schedule:
        return Schedule(plan, self.control, self.actions, self.resolver, self._tell)

    async def _end_later(self, held: Held, seconds: float) -> None:
        await trio.sleep(seconds)
        await self.end(held)

    async def _wait_struck(self, held: Held, wait: Callable[[], Awaitable[bool]]) -> None:
        struck = await wait()
        self.body_schedule.event(held, "struck" if struck else "missed", by_hand=True)
        if struck and held.step.for_s is not None:
            await self._end_later(held, held.step.for_s)


async def _keep(
    client: AbstractAsyncContextManager[Any],
    leaving: trio.Event,
    closed: trio.Event | None = None,
    *,
    task_status: Any,
) -> None:
    try:
        async with client as entered:
            task_status.started(entered)
            await leaving.wait()
    finally:
        if closed is not None:
            closed.set()
