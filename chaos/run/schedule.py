"""Carries steps out when they are due, and records the time and the targets.

The record is a list of steps with times and names in place of triggers and targets: the concrete
plan, which a replay file holds and the shrinker works on.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import eq, ge, gt, le, lt, ne
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import After, At, Every, Step, When
from rocketbed.chaos.run.actions import Actions, Done
from rocketbed.chaos.run.load import LoadControl
from rocketbed.chaos.run.targets import Resolver
from rocketbed.host.errors import HostError

LOOK_S: Final = 0.05
ACTION_S: Final = 60.0
"""Longest time that one action may take."""
COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


@dataclass(eq=False, slots=True, kw_only=True)
class Held:
    """A step whose fault is in force."""

    step: Step
    concrete: Step
    """The step with its time and names, as in the history."""
    done: Done
    place: int
    """Index of the step in `Schedule.done`."""
    since_s: float
    """Scenario time at which the fault began."""
    by_hand: bool


class Schedule:
    def __init__(
        self,
        plan: Plan,
        control: LoadControl,
        actions: Actions,
        resolver: Resolver,
        say: Callable[[str, float], None],
    ) -> None:
        self.done: list[Step] = []
        """Steps that were carried out, concrete."""
        self.skipped: list[str] = []
        """Steps that this backend cannot do, each with the reason."""
        self.missed: list[str] = []
        """Steps that were never due, or found no target, each with the reason."""
        self.vain: list[Step] = []
        """Steps of `done` that waited to strike (a crash point), and never did."""
        self.held: list[Held] = []
        """Faults that can be ended, oldest first. Later steps may have ended some of them."""
        self._plan = plan
        self._members = resolver.members
        self._backend = resolver.members.backend
        self._control = control
        self._actions = actions
        self._resolver = resolver
        self._say = say
        self._random = Random(f"{plan.seed}/schedule")
        self._zero_s = 0.0
        self._in_hand = 0
        self._closed = False
        self._followers: dict[str, list[Step]] = defaultdict(list)
        self._waiting: list[Step] = []
        """Steps that are not due yet."""

    def begin_now(self) -> None:
        """Start the clock of the steps' times."""
        self._zero_s = trio.current_time()

    async def run(self) -> None:
        self.begin_now()
        async with trio.open_nursery() as nursery:
            possible: list[Step] = []
            for step in self._plan.steps:
                reasons = list(filter(None, map(self._backend.lacks, step.needs)))
                if reasons:
                    self.skipped.append(f"{step}: {reasons[0]}")
                    continue
                self._waiting.append(step)
                if isinstance(step.trigger, After):
                    self._followers[step.trigger.label].append(step)
                else:
                    possible.append(step)
            for step in possible:
                trigger = step.trigger
                if isinstance(trigger, When):
                    nursery.start_soon(self._when, nursery, step, trigger)
                    continue
                assert not isinstance(trigger, After)
                for moment in self._moments(trigger):
                    nursery.start_soon(self._at, nursery, step, moment)

    def now_s(self) -> float:
        return trio.current_time() - self._zero_s

    async def by_hand(self, step: Step) -> list[str]:
        """Carry out, now, a step that is not in the plan. Return the names of those it hit.

        It is recorded as every step is. A lasting fault goes on until `end`, or until everything is
        healed. After `close` it hits nothing. Raises `HostError`.
        """
        if self._closed:
            return []
        self._in_hand += 1
        try:
            held = await self.begin(step, by_hand=True)
        finally:
            self._in_hand -= 1
        return [] if held is None else held.done.names

    async def close(self) -> None:
        """Accept no more steps by hand, and wait for those under way, so that all can be healed.

        Steps that were not due until now never will be.
        """
        self._closed = True
        self.missed += [f"{step}: it was never due" for step in self._waiting]
        while self._in_hand:
            await trio.sleep(LOOK_S)

    async def end(self, held: Held, *, by_hand: bool = False) -> None:
        """End a fault. Idempotent.

        By hand: its step in `done` gets the time that it lasted.
        """
        if held not in self.held or (by_hand and self._closed):
            return
        self.held.remove(held)
        lasted_s = round(max(self.now_s() - held.since_s, 1e-6), 6)
        self._in_hand += by_hand
        try:
            if held.done.undo is not None:
                with trio.move_on_after(ACTION_S, shield=True):
                    await held.done.undo()
        finally:
            self._in_hand -= by_hand
        if by_hand:
            self.done[held.place] = replace(held.concrete, for_s=lasted_s)
        self.event(held, "heal", by_hand=by_hand)

    def overtaken(self, held: Held) -> None:
        """Note that another step ended this fault, as a start ends a kill."""
        self.held.remove(held)
        self.event(held, "heal")

    def _moments(self, trigger: At | Every) -> list[float]:
        if isinstance(trigger, At):
            return [trigger.seconds]
        moments: list[float] = []
        end = self._plan.faults_s if trigger.until is None else trigger.until
        moment = trigger.seconds
        while moment <= end:
            moved = moment + (2 * self._random.random() - 1) * trigger.jitter
            moments.append(max(0.0, moved))
            moment += trigger.seconds
        return moments

    async def _at(self, nursery: trio.Nursery, step: Step, moment: float) -> None:
        await trio.sleep(max(0.0, moment - self.now_s()))
        await self._fire(nursery, step)

    async def _when(self, nursery: trio.Nursery, step: Step, condition: When) -> None:
        while not await self._holds(condition):
            await trio.sleep(LOOK_S)
        await self._fire(nursery, step)

    async def _holds(self, condition: When) -> bool:
        compare = COMPARE[condition.operator]
        if condition.subject == "t":
            return compare(self.now_s(), condition.value)
        if condition.subject == "acked":
            return compare(self._control.counts["ok"], condition.value)
        if condition.subject == "down":
            down = [node for node in self._members.nodes if self._backend.state(node) == "down"]
            return compare(len(down), condition.value)
        for leader in self._members.leaders().values():
            sample = await self._backend.observe(leader)
            if sample is None:
                continue
            value = sample.in_sync if condition.subject == "isr" else await self._lag(leader)
            if compare(value, condition.value):
                return True
        return False

    async def _lag(self, leader: str) -> int:
        """Return the bytes by which the last follower lags."""
        ends = []
        group = self._members.members[leader].group
        for node in [leader, *self._members.followers(group)]:
            sample = await self._backend.observe(node)
            if sample is not None:
                ends.append(sample.written)
        return max(ends) - min(ends) if ends else 0

    async def _fire(self, nursery: trio.Nursery, step: Step) -> None:
        """Carry a step out, start the steps that follow it, and undo it in its time."""
        self._waits_no_more(step)
        if step.share < 1.0 and self._random.random() >= step.share:
            for follower in self._followers.get(step.label, []) if step.label else []:
                self._waits_no_more(follower)
            return
        held = await self.begin(step)
        if held is None:
            return
        done = held.done
        if done.wait is not None:
            if not await done.wait():
                self.event(held, "missed")
                self.vain.append(held.concrete)
                self.missed.append(f"{held.concrete.to_the_millisecond()}: nobody came to it")
                return
            self.event(held, "struck")
        if step.label:
            self._resolver.hit[step.label] = done.names
        for follower in self._followers.get(step.label, []) if step.label else []:
            assert isinstance(follower.trigger, After)
            nursery.start_soon(self._at, nursery, follower, self.now_s() + follower.trigger.seconds)
        if step.for_s is not None and done.undo is not None:
            await trio.sleep(step.for_s)
            await self.end(held)

    def _waits_no_more(self, step: Step) -> None:
        """Take a step off the waiting list: it is due, or its draw decided against it."""
        self._waiting = [waiting for waiting in self._waiting if waiting is not step]

    async def begin(self, step: Step, *, by_hand: bool = False) -> Held | None:
        """Carry a step out and record it. Return None if it hit nothing."""
        moment = self.now_s()
        began_ns = self._backend.now_ns()
        done: Done | None = None
        with trio.move_on_after(ACTION_S, shield=True):
            done = await self._actions.do(step)
        if done is None:
            raise HostError(f"{step}, begun at {moment:.3f} s, did not end in {ACTION_S:g} s")
        if not done.names:
            self.missed.append(f"{step}: no target matched at {moment:.3f} s")
            return None
        concrete = replace(
            step,
            trigger=At(round(moment, 6)),
            target="" if step.verb == "heal" else ",".join(done.names),
            second=",".join(done.second),
            words=done.words or step.words,
            share=1.0,
        )
        held = Held(
            step=step,
            concrete=concrete,
            done=done,
            place=len(self.done),
            since_s=self.now_s(),
            by_hand=by_hand,
        )
        self.done.append(concrete)
        self.event(held, step.verb, began_ns=began_ns, by_hand=by_hand)
        self._say(concrete.action(), moment)
        if done.undo is not None:
            self.held.append(held)
        return held

    def event(
        self, held: Held, event: str, *, began_ns: int | None = None, by_hand: bool = False
    ) -> None:
        step, done = held.step, held.done
        fields: dict[str, Any] = {
            "step": str(held.concrete),
            "targets": done.names,
            "second": done.second,
            "label": step.label,
            "for_s": step.for_s,
        }
        if began_ns is not None:
            fields["began_ns"] = began_ns
        if by_hand:
            fields["by_hand"] = True
            if step.for_s is None and done.undo is not None:
                fields["for_s"] = 0.0  # it lasts for a time that is not known yet
        node = done.names[0] if len(done.names) == 1 else ""
        self._backend.history.event(Function.NEMESIS, node, event, fields)
