"""Actions of the verbs of a step, on whatever backend.

An action returns its targets and its undoing; the conductor decides when. Processes that a step
ended are started again by its undoing, unless they run already.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, cast

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.plan.damage import KINDS, Damage
from rocketbed.chaos.plan.step import Step
from rocketbed.chaos.plan.targets import machine_names
from rocketbed.chaos.plan.verbs import RegisterFault
from rocketbed.chaos.run.api import CrashPoint, DiskFault, Program
from rocketbed.chaos.run.effects import Effect, Effects, both_ways
from rocketbed.chaos.run.intruders import PIPE, PIPES, crowd, forge, hostile
from rocketbed.chaos.run.leave import Leave
from rocketbed.chaos.run.links import LinkState
from rocketbed.chaos.run.nodes import Nodes
from rocketbed.chaos.run.operator import force_leader, hand_over, trouble
from rocketbed.chaos.run.repairs import Repairs
from rocketbed.chaos.run.targets import Resolver

LOOK_S: Final = 0.02
OPERATOR: Final = ("promote", "repair", "restart", "handover", "register", "force")
"""Verbs that are carried out one after the other, so that the old master is not started as a master
while a new one is being chosen."""
FATAL: Final = ("eio-fsync", "eio-write", "eio-read", "full", "read-only")
"""Disk faults that end a node."""
NEEDS_FILES: Final = (
    "ConfigFileError",
    "OSError: [Errno 24]",
    "KeptFileUnwritable",
    "StoreFailed: truncating the log",
)
"""Reasons with which a node ends if it can open no file: at its start, when it truncates its log
or, with failover, when it changes its role."""
Undo = Callable[[], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Done:
    names: list[str]
    """Targets that it hit; empty if nothing fitted the target."""
    second: list[str] = field(default_factory=list)
    undo: Undo | None = None
    words: dict[str, Any] = field(default_factory=dict)
    """Arguments with the values that were drawn for them; empty if none were."""
    wait: Callable[[], Awaitable[bool]] | None = None
    """For a fault that strikes later than it was set up (`crash`): returns once it has struck or
    never will, with whether it did."""


class Actions:
    def __init__(self, resolver: Resolver, random: Random, programs: dict[str, Program]) -> None:
        self._resolver = resolver
        self._plan = resolver.plan
        self._members = resolver.members
        self._backend = resolver.members.backend
        self.leave = Leave(self._members, self._backend.now_ns)
        self.effects = Effects(self._backend, self.leave)
        self._programs = programs
        self.nodes = Nodes(self._members, programs)
        self._random = random
        self._operator = trio.Lock()
        self.repairs = Repairs(self._members, self.nodes, self._operator)
        self.nursery: trio.Nursery | None = None
        """Nursery of the run, for tasks beside the conductor."""
        self._lost_registers: dict[str, None] = {}
        """Nameservers whose newest register is to be restored."""
        self._lasting: list[Undo] = []
        """Undoings of what `recover` would not end otherwise: a second master, a crash point, a
        clock."""

    async def do(self, step: Step) -> Done:
        """Carry a step out now; an operator's action waits for the operator's action before it."""
        if step.verb in OPERATOR:
            async with self._operator:
                return await self._do(step)
        return await self._do(step)

    async def _do(self, step: Step) -> Done:
        names = await self._resolver.names(step.target) if step.target else []
        if not names and step.verb != "heal":
            return Done(names=[])
        method: Callable[[Step, list[str]], Awaitable[Done]] = getattr(self, f"_{step.verb}")
        return await method(step, names)

    async def recover(self) -> None:
        """End every fault, start everything that is down, and replace the nodes that report
        damage."""
        await self.effects.end_all()
        for undo in list(self._lasting):
            await undo()
        for node in machine_names(self._plan):
            await self.nodes.resume(node)
            if node in self._members.members and self._members.members[node].own:
                self._members.members[node].own.clear()
                await self._members.stop(node)
            await self.nodes.start(node)
        await self.repairs.replace(list(self.nodes.damaged))

    async def leave_broken(self, target: str) -> list[str]:
        """Cut the power of some machines until the next `recover`. Return their names.

        Spared are a master without an election to replace it, and all of them if too few nodes with
        a complete log would remain, as an emptied disk may not be filled yet.
        """
        names = await self._resolver.names(target)
        if not self._backend.elects:
            names = [name for name in names if not self._members.is_leader(name)]
        if any(self._too_few_without(names, group) for group in self._plan.shape.group_nodes()):
            names = []
        for name in names:
            await self.nodes.power_cut(name, self._plan.background.cut_mode)
        if names:
            fields = {"step": f"powercut {target} while all else is healed", "targets": names}
            self._backend.history.event(Function.NEMESIS, "", "powercut", fields)
        return names

    def _too_few_without(self, names: list[str], group: str) -> bool:
        nodes = self._plan.shape.group_nodes()[group]
        remaining = [
            node for node in nodes if node not in names and self._members.members[node].joined
        ]
        return len(remaining) < self._plan.shape.copies and any(node in names for node in nodes)

    # --- processes

    async def _kill(self, step: Step, names: list[str]) -> Done:
        for name in names:
            await self.nodes.kill(name)
        return Done(names=names, undo=_each(names, self.nodes.start))

    async def _stop(self, step: Step, names: list[str]) -> Done:
        for name in names:
            await self.nodes.stop(name)
        return Done(names=names, undo=_each(names, self.nodes.start))

    async def _restart(self, step: Step, names: list[str]) -> Done:
        if "down" in step.words:
            names = [name for name in names if self.nodes.state(name) == "down"]
        for name in names:
            if self.nodes.state(name) != "down":
                await self._stop(step, [name])
            if "set" in step.words and name in self._members.members:
                key, _, value = step.words["set"].partition("=")
                self._members.members[name].set(key, value)
            await self.nodes.start(name, stale="stale-table" in step.words)
        return Done(names=names)

    async def _pause(self, step: Step, names: list[str]) -> Done:
        running = [name for name in names if self.nodes.state(name) == "running"]
        for name in running:
            await self.nodes.pause(name)
        return Done(names=running, undo=_each(running, self.nodes.resume))

    async def _powercut(self, step: Step, names: list[str]) -> Done:
        modes = [word for word in step.words if word != "kernel"]
        mode = modes[0] if modes else self._plan.background.cut_mode
        names = [name for name in names if await self._may_lose_power(name)]
        for name in names:
            await self.nodes.power_cut(name, mode)
        return Done(names=names, undo=_each(names, self.nodes.start))

    async def _may_lose_power(self, name: str) -> bool:
        """Return whether its acknowledged messages are all on disk, or it can be spared."""
        return self._plan.shape.flush == "sync" or await self._can_be_spared(name)

    async def _can_be_spared(self, name: str) -> bool:
        """Return whether another node could lead if this one lost its data; else an operator would
        have to force one, and lose messages."""
        if name not in self._members.members or not self._plan.shape.failover:
            return True
        return await self._backend.has_spare(name)

    async def _crash(self, step: Step, names: list[str]) -> Done:
        words = dict(step.words)
        event: int | None = None
        if "store-event" in words:
            low, _, high = str(words["store-event"]).removeprefix("rand:").partition("..")
            event = self._random.randint(int(low), int(high)) if high else int(low)
            words["store-event"] = str(event)
        point = CrashPoint(event=event, mark=words.get("mark"), power="powercut" in words)
        before = {name: self._backend.ends(name) for name in names}
        permit = self.leave.begin(names, step.action())
        withdraw = _each(names, partial(self._backend.crash, point=CrashPoint()))

        async def end() -> None:
            await withdraw()
            self.leave.over(permit)

        disarm = self._undone_in_the_end(end)
        for name in names:
            await self._backend.crash(name, point)

        def look() -> bool:
            """Return whether some node has not reached its crash point yet."""
            for name in [node for node in before if self._backend.ends(node) != before[node]]:
                del before[name]
                self.nodes.unwanted(name)
            return bool(before)

        async def wait() -> bool:
            with trio.move_on_after(words.get("within", math.inf)):
                while look():
                    await trio.sleep(LOOK_S)
                await withdraw()  # it may have ended in another way
                self.leave.withdraw(permit)
                return True
            await disarm()
            look()  # a node may have reached its point since
            return len(before) < len(names)

        return Done(names=names, undo=_each(names, self.nodes.start), words=words, wait=wait)

    async def _wipe(self, step: Step, names: list[str]) -> Done:
        copied = [name for name in names if self._is_copied(name)]
        names = [name for name in copied if await self._can_be_spared(name)]
        for name in names:
            await self.nodes.empty(name)
        return Done(names=names, undo=_each(names, self.nodes.start))

    def _is_copied(self, name: str) -> bool:
        """Return whether another node may have a copy of this one's data. After a leader was
        emptied or damaged, no follower does until it has followed again."""
        members = self._members
        if name not in members.members or not members.is_leader(name):
            return True
        followers = members.followers(members.members[name].group)
        return not followers or any(
            members.members[node].joined and node not in self.nodes.damaged for node in followers
        )

    async def _promote(self, step: Step, names: list[str]) -> Done:
        await self._members.promote(names[0], unfenced="unfenced" in step.words)
        return Done(names=names[:1])

    async def _double(self, step: Step, names: list[str]) -> Done:
        name = names[0]
        member = self._members.members[name]

        async def undo() -> None:
            member.doubled = False
            number = self._members.count_promotion(member.group)
            # Other slaves may have followed the second master.
            for follower in self._members.followers(member.group):
                self._members.members[follower].cut = number
                if follower == name or self.nodes.state(follower) == "running":
                    await self._members.stop(follower)
                    await self._members.start(follower)

        member.doubled = True
        await self._members.stop(name)
        await self._members.start(name)
        return Done(names=[name], undo=self._undone_in_the_end(undo))

    async def _twin(self, step: Step, names: list[str]) -> Done:
        return Done(names=[name for name in names if await self._backend.twin(name)])

    # --- who leads, where a controller says so

    async def _handover(self, step: Step, names: list[str]) -> Done:
        return Done(names=[name for name in names if await hand_over(self._members, name)])

    async def _force(self, step: Step, names: list[str]) -> Done:
        if not await force_leader(self._members, names[0]):
            return Done(names=[])
        self._lost_registers.clear()
        return Done(names=names[:1])

    async def _register(self, step: Step, names: list[str]) -> Done:
        kind = next(word for word in step.form.one_of if word in step.words)
        if kind == "copy":
            return Done(names=[name for name in names if await self._backend.copy_register(name)])
        fault, hit = cast(RegisterFault, kind), []
        for name in names:
            # a second fault would lose the newest register
            is_first = name not in self._lost_registers
            if is_first and await self._backend.lose_register(name, fault):
                hit.append(name)
        self._lost_registers.update(dict.fromkeys(hit))
        return Done(names=hit, undo=self._undone_in_the_end(_each(hit, self._return_register)))

    async def _return_register(self, name: str) -> None:
        """Restore the newest register, as an operator does who notices the trouble."""
        if name not in self._lost_registers:
            return  # a forced leader has begun another register
        for group in self._plan.shape.group_nodes():
            fields = {"group": group, "trouble": await trouble(self._members, group)}
            self._backend.history.event(Function.NODE, name, "register", fields)
        del self._lost_registers[name]
        await self._backend.stop(name)
        await self._backend.return_register(name)
        await self.nodes.start(name)

    # --- links

    async def _partition(self, step: Step, names: list[str]) -> Done:
        second = await self._resolver.names(step.second, excluded=names)
        pairs = both_ways(names, second, one_way="one-way" in step.words)
        return await self._on_links(step, names, second, pairs, LinkState(cut=True))

    async def _isolate(self, step: Step, names: list[str]) -> Done:
        everybody = [*machine_names(self._plan), "harness"]
        remaining = [name for name in everybody if name not in names]
        return await self._on_links(
            step, names, [], both_ways(names, remaining), LinkState(cut=True)
        )

    async def _link(self, step: Step, names: list[str]) -> Done:
        second = await self._resolver.names(step.second, excluded=names)
        words = step.words
        state = LinkState(
            delay_s=words.get("delay", 0.0),
            jitter_s=words.get("jitter", 0.0),
            loss=words.get("loss", 0.0),
            rate=words.get("rate"),
        )
        return await self._on_links(step, names, second, both_ways(names, second), state)

    async def _reset(self, step: Step, names: list[str]) -> Done:
        second = await self._resolver.names(step.second, excluded=names)
        for source, target in both_ways(names, second, one_way=True):
            await self._backend.reset(source, target)
        return Done(names=names if second else [], second=second)

    async def _swizzle(self, step: Step, names: list[str]) -> Done:
        """Cut machines off one after the other, heal in another order (FoundationDB's
        swizzle-clog)."""
        pause = step.words.get("over", 4.0) / (2 * len(names))
        order = self._random.sample(names, len(names))
        effects: dict[str, Effect] = {}
        servers = [name for name in machine_names(self._plan) if name not in self._programs]
        for name in order:
            effect = Effect(dict.fromkeys(both_ways([name], servers), LinkState(cut=True)))
            effects[name] = effect
            await self.effects.begin(effect)
            await trio.sleep(pause)
        for name in self._random.sample(names, len(names)):
            await self.effects.end(effects[name])
            await trio.sleep(pause)
        return Done(names=order)

    # --- machines

    async def _disk(self, step: Step, names: list[str]) -> Done:
        words = step.words
        kind = next(word for word in step.form.one_of if word in words)
        seconds = words[kind] if kind in ("slow-fsync", "hang") else 0.0
        fault = DiskFault(
            kind=cast(Any, kind), seconds=seconds, once="once" in words, after=words.get("after", 0)
        )
        effect = Effect(disks=dict.fromkeys(names, fault))
        if kind in FATAL:
            effect.permit = self.leave.begin(names, step.action())
        elif kind == "no-descriptors":  # running nodes have to cope; a starting node cannot
            effect.permit = self.leave.begin(names, step.action(), *NEEDS_FILES)
        if kind == "lost-fsync":
            for name in names:
                self.nodes.damaged_now(name)
        await self.effects.begin(effect)
        if kind == "hang" and step.for_s is None:
            await trio.sleep(seconds)
            await self.effects.end(effect)
        return Done(names=names, undo=partial(self.effects.end, effect))

    async def _damage(self, step: Step, names: list[str]) -> Done:
        words = step.words
        kind = next(kind for kind in KINDS if kind in words)
        where = "" if kind == "stray" else words[kind]
        damage = Damage(kind=kind, where=where, last="last" in words)
        for name in names:
            await self.nodes.resume(name)
            if "stop" in words:
                await self.nodes.stop(name)
            elif "powercut" in words:
                await self.nodes.power_cut(name, self._plan.background.cut_mode)
            else:
                await self.nodes.kill(name)
            await self._backend.settled(name)
            hit = await self._backend.damage(name, damage)
            fields = {"hit": hit.place, "kind": kind, "untold": hit.is_unseen}
            self._backend.history.event(Function.NODE, name, "damaged", fields)
            self.nodes.damaged_now(name)
        return Done(names=names, undo=_each(names, self.nodes.start))

    async def _repair(self, step: Step, names: list[str]) -> Done:
        return Done(names=await self.repairs.replace(names))

    # --- peers

    async def _crowd(self, step: Step, names: list[str]) -> Done:
        count = step.words["count"]
        addresses = [self._backend.address(name) for name in names]
        addresses += [(host, port + 1) for host, port in addresses]  # replication
        task = partial(crowd, self._backend.world, addresses, count)
        return Done(names=names, undo=self._in_background(task))

    async def _hostile(self, step: Step, names: list[str]) -> Done:
        host, port = self._backend.address(names[0])
        pipe = PIPES.get(self._backend.name, PIPE)
        task = partial(hostile, self._backend.world, (host, port + 1), pipe)
        if self._plan.shape.failover:
            task = partial(forge, self._members, self._members.members[names[0]].group)
        return Done(names=names[:1], undo=self._in_background(task))

    def _in_background(self, task: Callable[[], Awaitable[None]]) -> Undo:
        """Run a task beside the conductor. Return the function that ends it."""
        assert self.nursery is not None
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await task()

        async def end() -> None:
            scope.cancel()

        self.nursery.start_soon(run)
        return self._undone_in_the_end(end)

    async def _clock(self, step: Step, names: list[str]) -> Done:
        jump, drift = step.words.get("jump", 0.0), step.words.get("drift", 0.0)
        for name in names:
            await self._backend.set_clock(name, jump_s=jump, drift=drift)
        undo = _each(names, partial(self._backend.set_clock, jump_s=-jump))
        if step.for_s is not None:
            return Done(names=names, undo=self._undone_in_the_end(undo))
        self._undone_in_the_end(_each(names, self._backend.set_clock))  # a jump lasts
        return Done(names=names, undo=undo)

    async def _cpu(self, step: Step, names: list[str]) -> Done:
        for name in names:
            await self._backend.set_cpu(name, step.words.get("slow", 10.0))
        undo = _each(names, partial(self._backend.set_cpu, slowness=1.0))
        self._undone_in_the_end(undo)  # in any case: it does not reach a process that is down
        return Done(names=names, undo=undo)

    async def _heal(self, step: Step, names: list[str]) -> Done:
        await self.effects.end_all()
        return Done(names=["all"])

    # --- inside

    async def _on_links(
        self,
        step: Step,
        names: list[str],
        second: list[str],
        pairs: list[tuple[str, str]],
        state: LinkState,
    ) -> Done:
        if step.second and not second:
            return Done(names=[])  # a node that is the only one
        effect = Effect(dict.fromkeys(pairs, state))
        await self.effects.begin(effect)
        undo = partial(self.effects.end, effect)
        return Done(names=names, second=second, undo=undo)

    def _undone_in_the_end(self, undo: Undo) -> Undo:
        """Return the same undoing, which `recover` calls if nothing did before."""

        async def undo_once() -> None:
            if undo_once in self._lasting:
                self._lasting.remove(undo_once)
                await undo()

        self._lasting.append(undo_once)
        return undo_once


def _each(names: list[str], action: Callable[[str], Awaitable[None]]) -> Undo:
    """Return an undoing that does something to each of them."""

    async def undo() -> None:
        for name in names:
            await action(name)

    return undo
