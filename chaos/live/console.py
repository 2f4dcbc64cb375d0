"""Buttons of a run: which can be pressed, and the step behind each.

A button is a step like any other, carried out by the run's own schedule. A lasting fault (a node
that is down, paused, cut off) is ended by its counterpart, and then appears in the plan with its
duration: `pause b1 for 3.2s`. So manual actions can be reproduced.
"""

import math
from collections import defaultdict
from dataclasses import replace
from typing import Final

import trio

from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.live.server import Refused
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.run.conductor import Conductor
from rocketbed.chaos.run.schedule import Held

CATCH_UP_S: Final = 2.0
"""Time that a slave may take to catch up with the others before it is promoted."""
LOOK_S: Final = 0.02
ACTIONS: Final = ("kill", "start", "pause", "resume", "cut", "heal", "powercut", "promote")
END: Final = "end"
HEAL_ALL: Final = "heal-all"
NEEDS: Final = {"pause": "proc.pause", "cut": "net.cut", "powercut": "disk.powercut"}
VERBS: Final = {"cut": "isolate"}
"""Verb of a button's step, if it differs from the button's name."""
ENDED_BY: Final = {
    "start": ("kill", "stop", "powercut", "crash", "wipe"),
    "resume": ("pause",),
    "heal": ("isolate", "partition", "link"),
}
"""Button -> the faults that it ends."""


class Console:
    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._locks: dict[str, trio.Lock] = defaultdict(trio.Lock)
        shape = conductor.plan.shape
        self.machines = [*shape.nameserver_names, *shape.nodes]

    def reasons(self, name: str) -> dict[str, str]:
        """Return why each of a machine's buttons cannot be pressed now; empty if it can."""
        conductor = self._conductor
        if conductor.phase != "faults":
            is_setup = conductor.phase == "set up"
            text = "the cluster is being set up" if is_setup else "the fault phase is over"
            return dict.fromkeys(ACTIONS, text)
        state = conductor.backend.state(name)
        is_node = name in conductor.members.members
        reasons = {action: conductor.backend.lacks(need) or "" for action, need in NEEDS.items()}
        reasons |= dict.fromkeys(ACTIONS[:2], "")
        if not is_node:
            reasons["powercut"] = "a nameserver has no data on disk"
        not_running = "" if state == "running" else f"it is {state}"
        if state == "down":
            reasons["kill"] = reasons["powercut"] = "it is down"
        reasons["start"] = "" if state == "down" else "it runs"
        reasons["pause"] = reasons["pause"] or not_running
        reasons["resume"] = "" if state == "paused" else "it is not paused"
        cut = self.is_cut(name)
        reasons["cut"] = reasons["cut"] or ("it is cut off" if cut else "")
        reasons["heal"] = "" if self._held(name, "heal") else "none of its links has a fault"
        reasons["promote"] = not_running
        if not is_node:
            reasons["promote"] = "a nameserver has no master"
        elif conductor.members.is_leader(name):
            reasons["promote"] = "it is the master"
        elif conductor.backend.elects:
            reasons["promote"] = "a controller elects the master here"
        return reasons

    def is_cut(self, name: str) -> bool:
        """True if every link from a machine to the nodes and nameservers is cut."""
        links = self._conductor.actions.effects.links()
        peers = [other for other in self.machines if other != name]
        return all((name, other) in links and links[name, other].cut for other in peers)

    async def press(self, action: str, name: str) -> str:
        """Press a button and return what was done. Raises `Refused`, `HostError`."""
        if action == END:
            if self._conductor.phase != "faults":
                is_over = self._conductor.faults_s
                raise Refused("the fault phase is over" if is_over else "it has not begun")
            self._conductor.end_faults()
            return "fault phase ended: everything is healed, read back and checked"
        if action == HEAL_ALL:
            return await self._heal_all()
        if name not in self.machines:
            raise Refused(f"unknown machine {name!r}")
        async with self._locks[name]:
            reason = self.reasons(name).get(action, f"unknown action {action!r}")
            if reason:
                raise Refused(f"{action} {name}: {reason}")
            if action in ENDED_BY:
                return await self._end_fault(action, name)
            if action == "promote":
                await self._may_lead(name)
            return await self._do(f"{VERBS.get(action, action)} {name}")

    def note(self, event: Event) -> None:
        """End the fault that a starting node was down for, whoever started it."""
        if event.function == Function.NODE and event.kind == "start":
            faults = self._held(event.node, "start") + self._held(event.node, "resume")
            for held in faults:
                if held.by_hand and held.done.names == [event.node]:
                    self._conductor.schedule.overtaken(held)

    # --- inside

    async def _may_lead(self, name: str) -> None:
        """Wait until no other slave has more of the log, as `cluster promote` does.

        What a slave lacks may have been acknowledged: losing that would be the operator's error,
        not the cluster's. Raises `Refused`.
        """
        backend, members = self._conductor.backend, self._conductor.members
        group = members.members[name].group
        reason = "it does not report the end of its log"
        until = trio.current_time() + CATCH_UP_S
        while trio.current_time() < until:
            own, log_ends = await backend.observe(name), {}
            for follower in members.followers(group):
                if follower != name and (sample := await backend.observe(follower)) is not None:
                    log_ends[follower] = sample.written
            longest = max(log_ends, key=log_ends.__getitem__, default=name)
            if own is not None and own.written >= log_ends.get(longest, 0):
                return
            if own is not None:
                reason = f"{longest} has {log_ends[longest]} bytes of log, it has {own.written}"
            await trio.sleep(LOOK_S)
        raise Refused(f"promote {name}: {reason}")

    async def _heal_all(self) -> str:
        if self._conductor.phase != "faults":
            raise Refused("the fault phase is over")
        schedule = self._conductor.schedule
        faults = [held for held in schedule.held if held.step.verb in ENDED_BY["heal"]]
        healed = [held for held in faults if held.by_hand]
        for held in healed:
            await schedule.end(held, by_hand=True)
        if self._conductor.actions.effects.in_force:
            return await self._do("heal")
        if not healed:
            raise Refused("no link or disk has a fault")
        return "over: " + ", ".join(held.step.action() for held in healed)

    async def _end_fault(self, action: str, name: str) -> str:
        """End a fault of a machine; a fault of several machines is not ended for one of them."""
        schedule = self._conductor.schedule
        held = self._held(name, action)
        if action == "heal":
            for fault in held:
                await schedule.end(fault, by_hand=True)
        elif held and (action == "resume" or held[-1].done.names == [name]):
            await schedule.end(held[-1], by_hand=True)
        elif action == "start":
            return await self._do(f"restart {name} down")
        else:
            raise Refused(f"{action} {name}: it is unknown why it is not running")
        return "over: " + ", ".join(fault.step.action() for fault in held[-1:])

    def _held(self, name: str, action: str) -> list[Held]:
        return [
            held
            for held in self._conductor.schedule.held
            if held.step.verb in ENDED_BY[action] and name in (*held.done.names, *held.done.second)
        ]

    async def _do(self, text: str) -> str:
        schedule = self._conductor.schedule
        if not await schedule.by_hand(parse_step(f"at 0s {text}")):
            raise Refused(f"{text}: no target matched")
        return text


def session_plan(plan: Plan, conductor: Conductor) -> Plan:
    """Return the plan that repeats a run, manual steps included, at the same times."""
    steps = [step.to_the_millisecond() for step in conductor.schedule.done]
    steps.sort(key=lambda step: step.at_s)
    faults_s = math.ceil(1000 * conductor.faults_s) / 1000
    return replace(plan, steps=tuple(steps), faults_s=faults_s or plan.faults_s)
