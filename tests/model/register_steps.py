"""Drawn work of a group's replicas: what they ask for, how they end, how they come back."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from rocketbed.replication.register.form import loaded
from rocketbed.wire.command import RequestCode
from rocketbed.wire.headers_failover import AlterInSyncRequest, HandOverRequest, ReplicaRequest
from tests.model.hand_replica import GROUP, HandReplica
from tests.model.register_group import (
    AFTER_S,
    BEAT_S,
    CONTROLLER,
    LEASE_S,
    NUMBERS,
    Group,
)
from tests.model.register_model import DONE, LATE, NO, TAKEN, UNKNOWN

BEFORE_S: Final = 0.04
"""Before the moment at which a lease ends: a beat's way."""
Code = RequestCode


class DrawnGroup(Group):
    """One that does something at each `step`."""

    async def step(self) -> None:
        random = self.random
        doings: list[tuple[int, Callable[[], Any]]] = [
            (6, self.join), (2, self.drop), (3, self.wrong), (2, self.again), (5, self.die),
            (2, self.mute), (6, self.back), (2, self.leave), (2, self.hand_over), (2, self.force),
            (3, self.grow), (1, self.copy), (1, self.stand_still), (1, self.restart),
            (1, self.another),
        ]  # fmt: skip
        weights, calls = zip(*doings, strict=True)
        work = random.choices(calls, weights)[0]
        await self.beat()
        await trio.sleep(AFTER_S)  # somebody may be elected by what was heard
        await work()
        await self.settled(work.__name__)

    async def alter(self, values: dict[str, Any], members: dict[int, int], op: str = "") -> None:
        model = self.model
        asked = {"leader": model.leader, "epoch": model.epoch, "version": model.version} | values
        hand = self.random.choice(self.alive())
        text = ",".join(f"{one}:{life}" for one, life in members.items())
        if asked["leader"] is None:
            asked["leader"] = hand.number
        header = AlterInSyncRequest(group=GROUP, inSync=text, op=op or self.op(), **asked)
        want = model.alter(asked["leader"], asked["epoch"], asked["version"], members)
        self.same(await hand.ask(Code.RB_ALTER_IN_SYNC, header), want, f"alter {asked} {members}")
        if want == DONE:
            self.done = Code.RB_ALTER_IN_SYNC, header

    async def join(self) -> None:
        """One that is alive becomes a member; or one that is not, which is the leader's affair."""
        absent = [one for one in self.model.lives if one not in self.model.members]
        if absent and self.alive():
            one = self.random.choice(absent)
            await self.alter({}, {**self.model.members, one: self.model.lives[one]})

    async def drop(self) -> None:
        rest = dict(self.model.members)
        others = [one for one in rest if one != self.model.leader]
        if others and self.alive() and self.model.leader is not None:
            del rest[self.random.choice(others)]
            await self.alter({}, rest)

    async def wrong(self) -> None:
        """What the rules forbid."""
        model = self.model
        if not self.alive() or model.leader is None:
            return
        members = dict(model.members)
        other = next(one for one in range(NUMBERS) if one != model.leader)
        leader = model.leader
        for values, asked in (
            ({"version": model.version - 1}, members),
            ({"version": model.version + 1}, members),
            ({"epoch": model.epoch - 1}, members),
            ({"epoch": model.epoch + 1}, members),
            ({"leader": other}, members),
            ({}, {one: life for one, life in members.items() if one != leader} or {other: 1}),
            ({}, {**members, other: model.lives.get(other, 0) + 1}),
            ({}, {**members, other: model.lives.get(other, 0) - 1}),
            ({}, {**members, 9: 1}),
        ):
            await self.alter(values, asked)
        hand = self.random.choice(self.alive())
        for fields, want in (
            ({"leader": other}, LATE), ({"epoch": model.epoch + 1}, LATE), ({"to": 9}, NO),
        ):  # fmt: skip
            wanted: dict[str, Any] = {"leader": leader, "epoch": model.epoch, "to": leader} | fields
            header = HandOverRequest(group=GROUP, op=self.op(), **wanted)
            self.same(await hand.ask(Code.RB_HAND_OVER, header), want, f"hand over {wanted}")
        unknown = ReplicaRequest(group="h", replica=0, incarnation=1, op=self.op())
        for code in (Code.RB_LEAVE, Code.RB_FORCE_LEADER):
            self.same(await hand.ask(code, unknown), UNKNOWN, f"{code.name} of another group")
        header_ = ReplicaRequest(group=GROUP, replica=leader, incarnation=None, op=self.op())
        self.same(await hand.ask(Code.RB_LEAVE, header_), TAKEN, "leave of no life")
        header_ = ReplicaRequest(group=GROUP, replica=leader, incarnation=0, op=self.op())
        self.same(await hand.ask(Code.RB_LEAVE, header_), DONE, "leave of an old life")

    async def again(self) -> None:
        """A request whose answer was lost is repeated: it changes nothing, whatever came since."""
        if self.done is None or not self.alive():
            return
        code, header = self.done
        found = await self.random.choice(self.alive()).ask(code, header)
        newest = loaded(self.shelf.values[GROUP][-1].value, name=GROUP, version=self.model.version)
        if newest.op == header.op:
            self.same(found, DONE, f"{header} again")
        else:
            assert found.code == LATE, f"answer: {found.code} for {header} again"

    async def hand_over(self) -> None:
        model = self.model
        if model.leader is None or not self.alive():
            return
        to = self.random.choice(sorted(model.lives))
        header = HandOverRequest(
            group=GROUP, leader=model.leader, epoch=model.epoch, to=to, op=self.op()
        )
        want = model.hand_over(model.leader, model.epoch, to)
        hand = self.random.choice(self.alive())
        self.same(await hand.ask(Code.RB_HAND_OVER, header), want, f"hand over to {to}")
        if want == DONE:
            self.done = Code.RB_HAND_OVER, header
            if to not in self.heard:
                model.gone(to, model.members[to])
                model.elect(self.heard)

    async def force(self) -> None:
        if not self.alive():
            return
        number = self.random.choice(range(NUMBERS))
        header = ReplicaRequest(group=GROUP, replica=number, op=self.op())
        want = self.model.force(number, self.heard)
        found = await self.random.choice(self.alive()).ask(Code.RB_FORCE_LEADER, header)
        self.same(found, want, f"force {number}, {self.heard} are alive")

    async def grow(self) -> None:
        """Logs get longer, nodes get into trouble or out of it."""
        for hand in self.alive():
            hand.epoch = max(hand.epoch, self.model.epoch - self.random.choice((0, 0, 1)))
            hand.end += self.random.choice((0, 0, 5, 100))
            hand.is_unfit = self.random.random() < 0.3
            hand.promised = max(hand.promised, hand.epoch)

    # --- how replicas end, and come back

    async def die(self) -> None:
        """Its process ends: its machine says so, at both of its ports."""
        if not self.alive():
            return
        hand = self.random.choice(self.alive())
        await self.silence(hand, deaf=2, hung_up=True)

    async def mute(self) -> None:
        """It says nothing more: with its connection, or without it but at one of its ports."""
        if self.alive():
            deaf = self.random.choice((0, 1))
            await self.silence(self.random.choice(self.alive()), deaf=deaf, hung_up=bool(deaf))

    async def silence(self, hand: HandReplica, *, deaf: int, hung_up: bool) -> None:
        """Nothing happens before its lease is over, unless its machine says that it is gone."""
        await hand.beat()
        said_s = trio.current_time()
        hand.beats = False
        hand.deafen(deaf)
        if hung_up:
            hand.hang_up()
        was_leader = self.model.leader == hand.number
        if deaf < 2:
            await self.live(said_s + LEASE_S - BEFORE_S - trio.current_time())
            await self.unchanged(f"{hand.number} is silent, and may act yet")
            self.heard.pop(hand.number)
            await trio.sleep(said_s + LEASE_S + AFTER_S - trio.current_time())
        else:
            self.heard.pop(hand.number)
            await trio.sleep(AFTER_S)
        if was_leader:
            self.model.gone(hand.number, hand.life)
            self.model.elect(self.heard)
        hand.hang_up()
        hand.deafen(2 - deaf)

    async def leave(self) -> None:
        """A life ends in order."""
        if not self.alive():
            return
        hand = self.random.choice(self.alive())
        header = ReplicaRequest(
            group=GROUP, replica=hand.number, incarnation=hand.life, op=self.op()
        )
        self.model.gone(hand.number, hand.life)
        found = await hand.ask(Code.RB_LEAVE, header)
        self.same(found, DONE, f"{hand.number} leaves")
        hand.beats = False
        self.heard.pop(hand.number, None)
        self.model.elect(self.heard)
        hand.hang_up()
        hand.deafen()
        await trio.sleep(AFTER_S)

    async def back(self) -> None:
        """Another life of one that ended, or of one that runs: a restart that nobody has noticed.
        Some have lost something, and say so, or say nothing of it."""
        hand = self.random.choice(self.hands)
        if hand.beats and self.random.random() < 0.5:
            return
        if self.random.random() < 0.5 and hand.end:
            hand.end -= 1
        await self.come(hand, lossless=self.random.random() < 0.7)

    async def copy(self) -> None:
        """A copy of a directory of one that runs is not taken in."""
        if not self.alive():
            return
        hand = self.random.choice(self.alive())

        def change(values: dict[str, Any]) -> None:
            values |= {
                "incarnation": hand.life + 1, "address": "10.9.9.9:1", "policy": self.policy,
                "replicas": self.replicas,
            }  # fmt: skip

        self.same(await hand.register(change), NO, f"a copy of {hand.number}")

    async def another(self) -> None:
        """An empty directory comes under a number that is known."""
        hand = self.random.choice(self.hands)
        if hand.number not in self.model.lives or not self.alive():
            return
        asks = self.random.choice(self.alive())
        uuid = f"another {self.op()}"
        empty: dict[str, Any] = {
            "replica": hand.number, "uuid": uuid, "incarnation": 1, "epoch": 0, "end": 0,
            "promised": 0, "policy": self.policy, "replicas": self.replicas,
            "address": hand.addresses[0], "haAddress": hand.addresses[1],
        }  # fmt: skip
        for field in ("epoch", "end", "promised"):
            full = {**empty, field: 1, "uuid": uuid + field}
            found = await asks.register(partial(_edited, full))
            self.same(found, NO, f"another {hand.number} with an {field}")
        found = await asks.register(partial(_edited, empty))
        if hand.beats or self.model.counts(hand.number):
            self.same(found, TAKEN, f"another {hand.number}, runs: {hand.beats}")
            if hand.beats:
                await self.live(2 * BEAT_S)
                found = await asks.register(partial(_edited, empty))
                self.same(found, NO, f"another {hand.number} beside one that runs")
            return
        above = found.fields.get("lifeAbove")
        assert found.code == DONE and above == str(hand.life), f"answer: {found.fields}"
        hand.uuid, hand.epoch, hand.end, hand.promised = uuid, 0, 0, 0
        self.last.pop(hand.number, None)
        await self.come(hand)

    # --- the controller's own troubles

    async def stand_still(self) -> None:
        """Its process stands still for longer than a lease: it does not take that for silence."""
        await self.script.outside(lambda: self.script.simulation.pause(CONTROLLER))
        await trio.sleep(2 * LEASE_S)
        await self.script.outside(lambda: self.script.simulation.resume(CONTROLLER))
        await self.live(2 * LEASE_S)

    async def restart(self) -> None:
        """The next controller begins with what is on record, and waits to hear all."""
        await self.another_controller()
        self.heard.clear()
        self.last.clear()
        self.waits = True
        for hand in self.alive():
            await hand.dial(self.controller)
            await self.registers(hand, lossless=True)
        leader = self.model.leader
        await self.unchanged("another controller has begun")
        await self.live(LEASE_S + AFTER_S)
        self.waits = False
        if leader is not None and leader not in self.heard:
            self.model.gone(leader, self.model.members[leader])
        self.model.elect(self.heard)


def _edited(edit: dict[str, Any], values: dict[str, Any]) -> None:
    values.update(edit)
