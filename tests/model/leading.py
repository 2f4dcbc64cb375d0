"""A node that leads a group, with a controller and followers by hand: whom it serves, what it
confirms, whom it asks to be in sync, and when it takes no messages.

A message is acknowledged when all members have it, of both sets while a change is not answered:
never before, and soon after.
"""

import re
from functools import partial
from random import Random

import trio

from rocketbed.replication.entry import Policy
from rocketbed.wire.bodies import KvTable
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.ha_native import Ack, Beat, Data, Fenced, Reject, Welcome
from rocketbed.world.api import World
from tests.model.hand_follower import HandFollower
from tests.model.leading_stage import (
    CAUGHT_UP_S,
    CLUSTER,
    GIVE_UP_S,
    GRACE_S,
    GROUP,
    LAG_S,
    LATE_S,
    LEASE_S,
    NODE,
    PEERS,
    SOON_S,
    LeadingStage,
)
from tests.model.script import Script
from tests.model.stage import SEGMENT, Stage


def run_leading(seed: int) -> str:
    """In memory and on disk; a digest."""
    digest = ""
    for policy in Policy:
        name = f"leading/{seed}/{policy}"
        with Stage(name) as stage:
            script = Script(stage.simulation)
            script.play(PEERS, _lead, Leading(stage, script, Random(name), policy))
            digest += stage.simulation.digest()
    return digest


async def _lead(world: World, leading: "Leading") -> None:
    async with trio.open_nursery() as nursery:
        await leading.begin(world, nursery)
        await leading.refusals()
        await leading.first_member()
        await leading.confirms()
        await leading.second_member()
        await leading.falls_behind()
        await leading.expires()
        await leading.loses_links()
        await leading.lost_answer()
        await leading.lease()
        await leading.hands_over()
        await leading.is_fenced()
        await leading.is_in_the_way()
        if leading.policy is Policy.MEMORY:  # half a minute, which tells the same in each
            await leading.is_outdone()
        leading.judge()
        nursery.cancel_scope.cancel()


class Leading(LeadingStage):
    """What happens to it, in this order."""

    async def refusals(self) -> None:
        """Whom it serves, and whom not, each with the reason."""
        one, epoch = self.one, self.controller.entry.epoch
        refused = partial(one.refused, self.world, self.place)
        for changes, why in (
            ({"cluster": "another"}, "it is of cluster 'another'"),
            ({"group": "another"}, "is not registered"),
            ({"replica": 9}, "is not registered"),
            ({"uuid": "another"}, "is not registered"),
            ({"incarnation": 2}, "life 2 of it is not the registered one"),
            ({"segment": SEGMENT + 1}, f"has files of {SEGMENT + 1} bytes"),
            ({"promised": epoch + 1}, f"has promised {epoch + 1}"),
            ({"history": ((3, 5),), "end": 5}, "cannot be in a log"),
            ({"history": ((3, 5), (2, 9)), "end": 50}, "cannot follow"),
            ({"history": ((9, 0),), "end": 50}, "reseed: its log shares no epoch"),
        ):  # fmt: skip
            await refused(epoch, one.hello(**changes), why)
        await refused(epoch - 1, one.hello(), f"it asks for epoch {epoch - 1}")
        await refused(epoch + 1, one.hello(promised=epoch + 1), "")
        await refused(epoch, Beat(0, 0), "the first frame has to be a HELLO")

    async def first_member(self) -> None:
        """Nothing is confirmed before there are two, so that nobody is made to wait."""
        since, welcome = len(self.controller.changes), await self._join(self.one)
        told = (welcome.leader, welcome.history, welcome.cut, welcome.first, welcome.confirm)
        assert told == (1, ((1, 0),), 0, 0, 0), f"welcome: {welcome}"
        await self.hears(self.one)
        await self.one.ack(0)
        await self.quiet(since, SOON_S, "one that has nothing of the epoch")
        await self.one.ack(self.end)
        await self.asked(since, {1: self.life, 2: 1}, 0, "the first member")
        await self.until(lambda: self.confirmed == self.end, "the marker is confirmed")
        await trio.sleep(0.1)
        self.sends()
        await self._follow(self.one, 0.5)
        await self.answered(-1)

    async def confirms(self) -> None:
        """Record by record, as the member acknowledges; each answer when its record is."""
        one = self.one
        ends = await self.written(4)
        await self.hears(one)
        before = len(self.sent)
        for number, end in enumerate(ends[-4:], 1):
            await one.ack(end - 1)  # of a record that is not whole nothing is answered
            await trio.sleep(0.02)
            assert len(self.sent) == before + number - 1, f"acknowledged: up to {end - 1}"
            if self.policy is Policy.FSYNC:
                await one.ack(end, durable=end - 1)
                await trio.sleep(0.02)
                assert len(self.sent) == before + number - 1, f"acknowledged: {end} in memory"
            await one.ack(end, durable=end + 7)
            await self.until(lambda end=end: self.confirmed == end, f"{end} is confirmed")  # type: ignore[misc]
            await self.answered(before + number)
        await one.ack(ends[-3])
        await trio.sleep(0.02)
        assert self.confirmed == ends[-1], f"confirm: falls to {self.confirmed}"
        await self.until(lambda: one.confirms[-1] == ends[-1], "a follower hears what is confirmed")
        twin = HandFollower(2, GROUP, CLUSTER, SEGMENT)
        twin.log, twin.history, twin.acknowledged = one.log, one.history, one.acknowledged
        twin.durable = one.durable
        self.one = twin
        await self._join(twin)
        await self.until(lambda: not one.is_linked, "an older connection ends")
        await twin.ack(len(twin.log))
        one = twin
        for content in (Ack(self.end + 1, 0, one.life), Ack(self.end, 0, one.life + 1),
                        Data(0, 0, b"x")):  # fmt: skip
            await one.say(content)
            await self.until(lambda: not one.is_linked, f"the link ends by {content}")
            await self._join(one)
            await one.ack(len(one.log))
        await one.say(Beat(0, 0), epoch=self.controller.entry.epoch + 1)
        await self.until(lambda: not one.is_linked, "the link ends by another epoch")
        await self._join(one)
        await one.ack(len(one.log))

    async def second_member(self) -> None:
        """One that nobody waits for joins when it was complete for a time; a learner never does;
        a newer connection ends the older one."""
        one, two = self.one, self.two
        since = len(self.controller.changes)
        epoch = self.controller.entry.epoch
        found = await two.dial(self.world, self.place, epoch, two.hello(learner=True))
        assert found is not None and not isinstance(found, Reject), f"welcome: {found}"
        await two.say(Ack(0, 0, 1))
        await self._follow(one, CAUGHT_UP_S + LATE_S)
        await self.quiet(since, 0, "a learner")
        await self._join(two)
        await self.hears(two)
        began = trio.current_time()
        await two.ack(len(two.log))
        await self._follow(one, two, CAUGHT_UP_S + LATE_S)
        (asked,) = self.changes(since)
        took_s = asked.at_s - began
        assert asked.members == {1: self.life, 2: 1, 3: 1}, f"asked: {asked.members}"
        assert took_s > CAUGHT_UP_S - 0.1, f"early: complete for {took_s} s"
        ends = await self.written(2)
        await self._gives({self.confirmed: False, ends[-2]: False})
        await self.hears(one)
        await self.hears(two)
        await one.ack(ends[-1])
        await trio.sleep(0.05)
        assert self.confirmed < ends[-2], "confirm: without the second member"
        await two.ack(ends[-2])
        await self.until(lambda: self.confirmed == ends[-2], "both have it")
        await trio.sleep(0.05)
        await self._gives({ends[-3]: True, ends[-2]: False})
        await two.ack(ends[-1])
        await self.answered(-1)

    async def _gives(self, starts: dict[int, bool]) -> None:
        """By their ids only messages that are confirmed."""
        for at, is_confirmed in starts.items():
            code = ResponseCode.SUCCESS if is_confirmed else ResponseCode.SYSTEM_ERROR
            await self.peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(at)}, code)

    async def falls_behind(self) -> None:
        """A member that does not keep up is left out where another one stays, and not else."""
        one, two = self.one, self.two
        since = len(self.controller.changes)
        await self.written(2)
        await self.hears(two)
        await self.hears(one)
        began = trio.current_time()
        await self._follow(one, LAG_S + LATE_S)
        (asked,) = self.changes(since)
        took_s = asked.at_s - began
        assert asked.members == {1: self.life, 2: 1}, f"asked: {asked.members}"
        assert took_s > LAG_S - 0.1, f"early: behind for {took_s} s"
        await self.answered(-1)
        await two.ack(len(two.log))
        since = len(self.controller.changes)
        await self.written(1)
        await self.quiet(since, 2 * LAG_S, "the last member is slow")
        await self._follow(one, 0.1)
        await self.answered(-1)
        await self._follow(one, two, CAUGHT_UP_S + LAG_S + LATE_S)
        assert 3 in self.controller.entry.in_sync, "asked: it keeps up again"

    async def expires(self) -> None:
        """Files go that are old: who ends below the log's beginning has to begin with nothing, and
        is sent what there is then."""
        one, two, store = self.one, self.two, self.node.store
        early = self.ends()[1]
        while self.end < 3 * SEGMENT:
            for _ in range(8):
                self.sends()
            await self._follow(one, two, 0.1)
        store.delete_expired()
        for _ in range(100):
            await self._follow(one, two, 0.2)
            if store.min_offset:
                break
        low, epoch = store.min_offset, self.controller.entry.epoch
        assert low >= SEGMENT and early < low, f"load: the log begins at {low}"
        await self.answered(-1)
        twin = HandFollower(3, GROUP, CLUSTER, SEGMENT)
        behind = twin.hello(promised=epoch, end=early, history=((1, 0),))
        why = f"reseed: our log is the same up to {early}, and begins at {low} now"
        await twin.refused(self.world, self.place, epoch, behind, why)
        found = await twin.dial(self.world, self.place, epoch, twin.hello(promised=epoch))
        assert isinstance(found, Welcome), found
        told = (found.history, found.first, found.cut, found.crc)
        assert told == (((1, 0),), low, low, 0), f"welcome: {told} of a log from {low}"
        await self.until(lambda: not two.is_linked, "an older connection ends")
        await self._join(two)
        await self._follow(one, two, CAUGHT_UP_S + LAG_S + LATE_S)
        assert 3 in self.controller.entry.in_sync, "asked: it is there again"

    async def loses_links(self) -> None:
        """A member that comes back at once stays; one that stays away is left out."""
        one, two = self.one, self.two
        since = len(self.controller.changes)
        two.hang_up()
        await self._follow(one, GRACE_S - 0.1)
        await self._join(two)
        await self._follow(one, two, 2 * GRACE_S)
        await self.quiet(since, 0, "a link that came again")
        two.hang_up()
        began = trio.current_time()
        await self._follow(one, GRACE_S + LATE_S)
        (asked,) = self.changes(since)
        assert asked.members == {1: self.life, 2: 1}, f"asked: {asked.members}"
        assert asked.at_s - began > GRACE_S - 0.1, f"early: {asked.at_s - began} s away"
        one.hang_up()
        since = len(self.controller.changes)
        await self.until(lambda: len(self.changes(since)) > 0, "nobody follows", GRACE_S + LATE_S)
        await trio.sleep(0.05)
        assert self.controller.entry.in_sync.keys() == {1}, "asked: alone"
        await self._refuses(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: 1 of 2")
        await self._join(one)
        await self._follow(one, 0.2)
        assert 2 in self.controller.entry.in_sync, "asked: nobody waits for who is needed"

    async def lost_answer(self) -> None:
        """While nobody says whether a set was made, both have to have it; it is asked for again."""
        one, two = self.one, self.two
        await self._join(two)
        self.controller.answers = False
        since = len(self.controller.changes)
        await self._follow(one, two, CAUGHT_UP_S + LATE_S)
        assert len(self.changes(since)) == 1, f"asked: {self.changes(since)}"
        ends = await self.written(1)
        await self.hears(one)
        await one.ack(ends[-1])
        await trio.sleep(0.1)
        assert self.confirmed < ends[-1], "confirm: by the old set alone"
        await self.hears(two)
        await two.ack(ends[-1])
        await self.answered(-1)
        self.controller.answers = True
        self.controller.publish()
        await self._follow(one, two, 0.2)
        ops = {asked.header.op for asked in self.changes(since)}
        assert len(ops) == 1 and "" not in ops, f"asked: {ops}"

    async def lease(self) -> None:
        """Without a lease it takes messages as long as all members follow, who would follow no
        other one; not any more when one does not."""
        one, two = self.one, self.two
        shown = await self.peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}, 0)
        told = KvTable.decode(shown.body).table["rbGroup"]
        found = re.fullmatch(r"epoch 1: leads, lease (0\.\d) s, 2 of 3 in sync: 1, 2", told)
        assert found is not None and 0 < float(found[1]) <= LEASE_S, f"lease: {told}"
        self.controller.answers_beats = False
        await self._follow(one, two, 2 * LEASE_S)
        number = len(self.sent)
        self.sends()
        await self._follow(one, two, 0.1)
        await self.answered(number + 1)
        two.hang_up()
        await self._follow(one, 0.05)
        answer = await self.peer.send(ResponseCode.SERVICE_NOT_AVAILABLE, c="TBW102", d=2)
        assert '"leader"' in (answer.remark or ""), f"refusal: {answer.remark}"
        self.controller.answers_beats = True
        await self._join(two)
        await self._follow(one, two, 4.0)
        self.sends()
        await self._follow(one, two, 0.1)
        await self.answered(-1)

    async def hands_over(self) -> None:
        """To a member that has all of it, and would be a good leader; else to nobody."""
        one, two = self.one, self.two
        epoch, since = self.controller.entry.epoch, len(self.controller.changes)
        for fields, code in (
            ({"group": "another"}, ResponseCode.CONTROLLER_INVALID_REQUEST),
            ({"epoch": epoch + 1}, ResponseCode.CONTROLLER_INVALID_REQUEST),
            ({"to": 9}, ResponseCode.CONTROLLER_INVALID_REQUEST),
        ):
            await self._ask_over(code, **{"epoch": epoch, **fields})
        two.is_unfit = True
        await self._follow(one, two, 2 * 0.1)
        await self._ask_over(ResponseCode.CONTROLLER_INVALID_REQUEST, epoch=epoch, to=3)
        await self.quiet(since, 0, "nobody was to lead")
        self.nursery.start_soon(self._waits_in_vain)
        await trio.sleep(0.05)
        await self.hears(one)
        done: list[Command] = []

        async def ask() -> None:
            done.append(await self._ask_over(0, epoch=epoch, to=-1))

        self.nursery.start_soon(ask)
        await trio.sleep(0.1)
        assert not done, "handed over: to one that lacks a message"
        refused = await self.peer.send(ResponseCode.SERVICE_NOT_AVAILABLE, c="TBW102", d=2)
        assert '"leader"' in (refused.remark or ""), f"refusal: {refused.remark}"
        await self._follow(one, two, 0.2)
        (asked,) = self.changes(since)
        told = (asked.code, asked.header.to, asked.header.epoch, asked.header.leader)
        assert told == (RequestCode.RB_HAND_OVER, 2, epoch, 1), f"handed over: {asked}"
        await self.until(lambda: self.leader is None, "it leads no more")
        two.is_unfit = False

    async def is_fenced(self) -> None:
        """It leads again, until a follower says that it has promised a higher epoch: from that
        moment it takes nothing, and asks for an epoch of its own."""
        one, two = self.one, self.two
        one.hang_up()
        two.hang_up()
        self.controller.lead(1)
        epoch = self.controller.entry.epoch
        await self.until(lambda: self.leader is not None, "it leads again", 2)
        self.leader.confirm.subscribe(self._confirmed)
        for follower in (one, two):
            had = len(follower.log)
            welcome = await self._join(follower)
            assert welcome.cut == min(had, welcome.history[-1][1]), f"welcome: {welcome}"
            await self.hears(follower)
        await self._follow(one, two, 0.2)
        await one.say(Fenced(epoch))
        await self._follow(one, two, 0.1)
        self.sends()
        await self._follow(one, two, 0.1)
        await self.answered(-1)
        since, end = len(self.controller.changes), self.end
        under_way: list[Command] = []

        async def send() -> None:
            assert self.peer.connection is not None
            asked = self.peer.send_request(c="TBW102", d=2)
            under_way.append(await self.peer.connection.request(asked, timeout_s=60))

        self.nursery.start_soon(send)
        await self.until(lambda: self.end > end, "a send that nobody acknowledges")
        await one.say(Fenced(epoch + 1))
        await self.until(lambda: len(self.changes(since)) > 0, "it asks for another epoch", 1)
        await self.until(lambda: bool(under_way), "an answer, now that it leads no more")
        assert under_way[0].code != ResponseCode.SUCCESS, f"acknowledged: {under_way}"
        (asked,) = self.changes(since)
        told = (asked.code, asked.header.to, asked.header.epoch)
        assert told == (RequestCode.RB_HAND_OVER, 1, epoch), f"fenced: {asked}"

    async def is_in_the_way(self) -> None:
        """Nobody follows, and its log may be why: it leaves where others could lead; not before it
        was told that its log is no good, nor when that is mended."""
        one, two = self.one, self.two
        await self.until(lambda: self.leader is not None, "it leads again", 2)
        for follower in (one, two):
            await self._join(follower)
            await self.hears(follower)
        await self._follow(one, two, CAUGHT_UP_S)
        doubt = Reject(why="no good", first=one.acknowledged)
        looked, scrubber = list[int](), self.node.store.scrubber
        look = scrubber.check_at

        async def check_at(offset: int) -> None:
            looked.append(offset)
            await look(offset)

        scrubber.check_at = check_at
        for _ in range(2):
            await one.say(doubt)
        await trio.sleep(0.02)
        told = [line["offset"] for line in self.stage.told(NODE, "leader.doubted")]
        assert told == [doubt.first], f"doubted: {told} for {doubt}"
        await self.until(lambda: looked == [doubt.first], "it looks there itself", 1.5)
        await self.written(1)
        await self._follow(one, two, 0.1)  # what it doubted it has now
        since = len(self.controller.changes)
        one.hang_up()
        two.hang_up()
        await trio.sleep(2.0)
        asked = [one.code for one in self.changes(since)]
        assert set(asked) == {RequestCode.RB_ALTER_IN_SYNC}, f"in the way: {asked}"
        members = self.controller.entry.in_sync.keys()
        assert members == {1}, f"asked: {members}"
        assert not self._left(), "in the way: it left soon after it was alone"
        await self._join(two)
        await two.say(Reject(why="no good", first=two.acknowledged))
        await trio.sleep(0.02)
        two.hang_up()
        await self.until(lambda: len(self._left()) > 0, "it leaves", 0.8)
        told_ = [(found.header.replica, found.header.incarnation) for found in self._left()]
        assert told_ == [(1, self.life)], f"in the way: {told_}"

    async def is_outdone(self) -> None:
        """Its disk has no room for another file: a member that has room is to lead, soon; not while
        no member says that it would be better, and not before this node is in trouble."""
        one, two = self.one, self.two
        self.controller.lead(1)
        epoch = self.controller.entry.epoch
        await self.until(lambda: self.leader is not None and self.leader.epoch == epoch,
                         "it leads again", 2)  # fmt: skip
        self.leader.confirm.subscribe(self._confirmed)
        for follower in (one, two):
            await self._join(follower)
            await self.hears(follower)
        await self._follow(one, two, 2 * CAUGHT_UP_S)
        await trio.sleep(GIVE_UP_S)
        members = self.controller.entry.in_sync.keys()
        assert members == {1, 2, 3}, f"asked: {members}"
        one.is_unfit = two.is_unfit = True
        await self._follow(one, two, 0.3)
        since = len(self.controller.changes)
        disk = self.stage.simulation.process(NODE).disk
        disk.quota = disk.allocated() + SEGMENT - 1
        await self._follow(one, two, 2.0)
        await self.quiet(since, 0, "nobody would do it better")
        two.is_unfit = False
        await self._follow(one, two, 1.5)
        told = [(found.code, found.header.to) for found in self.changes(since)]
        assert told == [(RequestCode.RB_HAND_OVER, 3)], f"outdone: {told}"
        disk.quota = None
