"""A node that follows, with a controller and leaders by hand: whom it follows, what it says of its
log, what it takes, what it cuts off, through damage, kills and power cuts.

It acknowledges whole records that it has, on disk where it says so, and nothing else; and its log
is its leader's, byte for byte.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.remoting.client import open_connection
from rocketbed.replication.entry import Policy
from rocketbed.wire.command import RequestCode, ResponseCode, request
from rocketbed.wire.ha_native import Ack, Beat, Data, Hello, Reject
from rocketbed.world.api import World
from tests.model.hand_controller import PORT as CONTROLLER_PORT
from tests.model.hand_controller import HandController
from tests.model.hand_leader import Epochs, HandLeader
from tests.model.script import Script, wait_until
from tests.model.stage import PORT, SEGMENT, Stage, ends_of, read_log

NODE, PEERS = "node", "peers"
GROUP, CLUSTER = "broker-a", "DefaultCluster"
BASE: Final = 12_000
"""Port of leader 0; each has its own."""
SOON_S: Final = 1.2
"""For another link, after the longest pause, and all that a log needs."""
BODY_AT: Final = 88
"""Where a record's body begins, which its CRC is of."""
LONG: Final = 200_000
ROOM: Final = SEGMENT - 1
"""On a disk that is full for another segment, and not for the rest."""
ONLY_LEADERS: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)
"""By themselves, not as the node lists them: one that it forgets is found."""


def run_led(seed: int) -> str:
    """In memory, killed, and on disk, without power; a digest."""
    digest, random = "", Random(f"led/{seed}")
    base, first, epochs = made_log(f"led/{seed}/1", None, (1,), 20, random)
    _, second, epochs_2 = made_log(f"led/{seed}/2", base, (*epochs, 2), 60, random)
    _, third, epochs_3 = made_log(f"led/{seed}/3", base, (*epochs, 3), 30, random)
    assert first == second[: len(first)] == third[: len(first)], "load: no common beginning"
    for policy, end in ((Policy.MEMORY, "kill"), (Policy.FSYNC, "power")):
        name = f"led/{seed}/{policy}"
        with Stage(name) as stage:
            stage.simulation.host(NODE).sync_seconds = (0.02, 0.06)
            script = Script(stage.simulation)
            led = Led(stage, script, random, policy, end)
            led.logs = {2: (second, epochs_2), 3: (third, epochs_3)}
            led.parts_at = len(first)
            script.play(PEERS, _follow, led)
            digest += stage.simulation.digest()
    return digest


def made_log(
    name: str, image: DiskImage | None, epochs: tuple[Any, ...], count: int, random: Random
) -> tuple[DiskImage, bytes, Epochs]:
    """The log of one that led the last of these epochs, alone, behind what is in the image."""
    with Stage(name) as stage:
        controller = HandController(GROUP, replicas=1, policy=Policy.FSYNC)
        script = Script(stage.simulation)
        history = tuple(one for one in epochs if isinstance(one, tuple))
        made: list[Any] = []

        async def lead(world: World) -> None:
            async with trio.open_nursery() as nursery:
                await controller.serve(world, nursery)
                stage.begin(NODE, settings_of(stage, Policy.FSYNC, replicas=1), image=image)
                while not controller.beats:  # noqa: ASYNC110, in virtual time
                    await trio.sleep(0.01)
                number = epochs[-1]
                controller.publish(epoch=number - 1, leader=None, in_sync={}, eligible={})
                controller.lead(1)
                while not _leads(stage):  # noqa: ASYNC110, in virtual time
                    await trio.sleep(0.01)
                await script.outside(lambda: stage.fill(NODE, count, random))
                log = read_log(stage.nodes[NODE].store.log)[1]
                start = stage.nodes[NODE].failover.member.leader.view.start  # type: ignore[union-attr]
                made.append((log, (*history, (number, start))))
                await script.outside(lambda: stage.simulation.stop(NODE))
                while not stage.simulation.process(NODE).done:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()

        script.play(PEERS, lead)
        return stage.simulation.host(NODE).image, *made[0]


def _leads(stage: Stage) -> bool:
    node = stage.nodes.get(NODE)
    return (
        node is not None and node.failover is not None and node.failover.member.leader is not None
    )


def settings_of(stage: Stage, policy: Policy, *, replicas: int) -> dict[str, object]:
    place = f"{stage.simulation.host(PEERS).address}:{CONTROLLER_PORT}"
    return {
        "brokerName": GROUP, "rbReplica": 1, "rbReplicas": replicas, "namesrvAddr": place,
        "brokerClusterName": CLUSTER,
        "flushDiskType": "SYNC_FLUSH" if policy is Policy.FSYNC else "ASYNC_FLUSH",
    }  # fmt: skip


async def _follow(world: World, led: "Led") -> None:
    async with trio.open_nursery() as nursery:
        await led.begin(world, nursery)
        await led.refuses()
        await led.copies()
        await led.changes_nothing()
        await led.faulty_frames()
        await led.ends()
        await led.silence()
        await led.parts()
        await led.confirmed_parts()
        await led.older_register()
        led.judge()
        nursery.cancel_scope.cancel()


class Led:
    """The node and its peers."""

    def __init__(
        self, stage: Stage, script: Script, random: Random, policy: Policy, end: str
    ) -> None:
        self.stage, self.script, self.random = stage, script, random
        self.policy, self.end = policy, end
        self.controller = HandController(GROUP, replicas=3, policy=policy)
        self.leaders = {n: HandLeader(n, BASE + n, random) for n in (2, 3)}
        self.leader = self.leaders[2]
        self.logs: dict[int, tuple[bytes, Epochs]] = {}
        self.parts_at = 0
        self.loses = random.random() < 0.5
        """Whether one of its lives ends without power, however it acknowledges."""
        self.cut_mode = "random"
        """What a loss of power leaves."""
        self._wrong: list[str] = []

    async def begin(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        await self.controller.serve(world, nursery)
        host = self.stage.simulation.host(PEERS).address
        for number, leader in self.leaders.items():
            leader.log, leader.history = self.logs[number]
            leader.on_ack = self._acknowledged
            await leader.serve(world, nursery)
            self.controller.add(number, f"directory {number}", f"{host}:{BASE + number}")
        self.leads(2, 2)
        self.leader.instead = Reject(why="not yet")
        self.settings = settings_of(self.stage, self.policy, replicas=3)
        self.stage.begin(NODE, self.settings)
        await self.until(lambda: bool(self.leader.hellos), "a first HELLO", 10)
        self.hello(self.leader.hellos[0], end=0, history=(), life=1)

    def leads(self, number: int, epoch: int, **changes: Any) -> None:
        """The register names this one."""
        self.leader = self.leaders[number]
        self.leader.epoch = epoch
        self.controller.publish(epoch=epoch - 1, leader=None, in_sync={}, eligible={})
        self.controller.lead(number, **changes)

    @property
    def store(self) -> Any:
        return self.stage.nodes[NODE].store

    @property
    def follower(self) -> Any:
        node = self.stage.nodes.get(NODE)
        return None if node is None or node.failover is None else node.failover.member.follower

    def is_linked(self) -> bool:
        return self.follower is not None and self.follower.is_linked

    def log(self) -> bytes:
        return bytes(read_log(self.store.log)[1])

    def _acknowledged(self, ack: Ack) -> None:
        """Whole records that it has, on disk as far as it says so."""
        if NODE not in self.stage.nodes:
            return  # said before it ended
        log, leader = self.store.log, self.leader
        whole = leader.whole(log.written.value)
        if ack.received > whole or leader.whole(ack.received) != ack.received:
            self._wrong.append(f"{ack}: {log.written.value} is written, {whole} are whole records")
        if ack.durable > log.flushed.value or leader.whole(ack.durable) != ack.durable:
            self._wrong.append(f"{ack}: {log.flushed.value} is on disk")
        if ack.incarnation != self.controller.entry.replicas[1].incarnation:
            self._wrong.append(f"{ack} of another life")

    def judge(self) -> None:
        """Raises `AssertionError` for what was acknowledged and is not there."""
        assert not self._wrong, "acknowledged: " + "; ".join(self._wrong[:2])

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = SOON_S) -> None:
        await wait_until(holds, what, seconds, 0.008, self.judge)

    def hello(self, hello: Hello, *, end: int, history: Epochs, life: int) -> None:
        """What it says of itself is what it has."""
        told = (hello.cluster, hello.group, hello.replica, hello.incarnation, hello.promised,
                hello.history, hello.end, hello.first, hello.segment, hello.learner)  # fmt: skip
        want = (CLUSTER, GROUP, 1, life, self.leader.epoch, history, end, 0, SEGMENT, False)
        assert told == want, f"hello: {told} for {want}"
        uuid = self.controller.entry.replicas[1].uuid
        assert hello.uuid == uuid and hello.durable <= end, f"hello: {hello}"

    def noted(self, end: int) -> Epochs:
        """The epochs of a log of this leader that ends there."""
        return tuple(one for one in self.leader.history if one[1] < end)

    async def again(self, what: str) -> Hello:
        """It comes on another link."""
        seen = len(self.leader.hellos)
        await self.until(lambda: len(self.leader.hellos) > seen, f"another HELLO: {what}", 4)
        return self.leader.hellos[-1]

    async def follows(self, what: str) -> None:
        """It has all, as far as this is sent, and says so."""
        leader = self.leader
        await self.until(
            lambda: (
                self.is_linked()
                and self.store.log.written.value == leader.upto
                and bool(leader.acks)
                and leader.acks[-1].received == leader.whole(leader.upto)
            ),
            f"all is acknowledged: {what}",
            4,
        )
        assert self.log() == leader.log[: leader.upto], f"log: {what}: other bytes"
        if self.policy is Policy.FSYNC:
            end = leader.whole(leader.upto)
            await self.until(lambda: leader.acks[-1].durable == end, f"on disk: {what}", 4)
        assert self.follower.is_linked and not self.follower.refusal, f"following: {what}"
        await self.until(self._beats_as_it_is, f"its beats say what it has: {what}")

    def _beats_as_it_is(self) -> bool:
        beat, entry = self.controller.beats[-1], self.controller.entry
        upto = self.leader.upto
        end = self.leader.whole(upto)
        told = (beat.incarnation, beat.epoch, beat.end, beat.version, beat.unfit)
        epoch = max([0, *(number for number, start in self.leader.history if start < upto)])
        return told == (entry.replicas[1].incarnation, epoch, end, entry.version, None)

    # --- what happens

    async def refuses(self) -> None:
        """A leader that is not the one it looks for, or says what cannot be."""
        leader = self.leader
        for instead, changes, why in (
            (Reject(why="no"), {}, "replica 2 refuses: no"),
            (Beat(0, 0), {}, "no WELCOME of epoch 2"),
            (None, {"leader": 3}, "it is replica 3, not 2"),
            (None, {"history": ((2, 5), (1, 9))}, "a history that no log can have"),
            (None, {"history": ((1, 0), (2, LONG))}, "a history that no log can have"),
            (None, {"cut": 5, "compared": 5}, "an empty log is sent from 5"),
        ):  # fmt: skip
            leader.instead, leader.changes = instead, changes
            await self.again(why)
            await self.until(lambda why=why: why in self.follower.refusal, why)  # type: ignore[misc]
            assert self.store.log.written.value == 0, "log: bytes of a leader that is refused"
        leader.instead, leader.changes = None, {}

    async def copies(self) -> None:
        """In pieces of any size, with what is confirmed: as far as it has that."""
        leader, confirmed = self.leader, self.stage.nodes[NODE].failover
        ends = ends_of(leader.log)
        await self.again("the right one")
        for at in (self.parts_at - 3, self.parts_at, self.parts_at + 40):
            leader.send_upto(at)
            await self.follows(f"up to {at}")
            assert self.follower.is_linked, "following: no link"
        leader.confirm = ends[3]
        mark = confirmed.member.confirm  # type: ignore[union-attr]
        await self.until(lambda: mark.value == ends[3], "what is confirmed is known")
        assert self.parts_at > ends[3], "load: the logs part too early"

    async def changes_nothing(self) -> None:
        """What a group has in common is not changed at one that follows, which says who leads."""
        place = (self.stage.simulation.host(NODE).address, PORT)
        async with open_connection(self.world, place) as connection:
            for code in ONLY_LEADERS:
                found = await connection.request(request(code, {}))
                right = found.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert right and ":1" in (found.remark or ""), f"changed: {code.name}: {found}"

    async def faulty_frames(self) -> None:
        """Each ends the link, and nothing of it stays; a rotten record is named to the leader."""
        leader = self.leader
        end = leader.upto
        beyond = leader.log[end : end + 50]
        for content, epoch in (
            (Data(end + 1, 0, beyond[1:]), 2), (Data(end - 1, 0, beyond), 2),
            (Data(end, 0, beyond), 1), (Beat(0, 0), 3),
            (Data(end, 0, bytes(SEGMENT - end % SEGMENT + 1)), 2), (Ack(0, 0, 1), 2),
        ):  # fmt: skip
            await leader.say(content, epoch)
            hello = await self.again(f"{type(content).__name__} of epoch {epoch}")
            self.hello(hello, end=leader.whole(end), history=self.noted(leader.whole(end)), life=1)
            await self.until(lambda: bool(leader.acks), "an acknowledgement")
            await self.follows("after a faulty frame")
        start = leader.whole(leader.upto)
        assert leader.upto < start + BODY_AT, "load: the body was sent already"
        right = leader.log
        after = next(one for one in ends_of(right) if one > start)
        rotten = bytearray(right)
        rotten[start + BODY_AT + 2] ^= 8
        leader.log, leader.upto = bytes(rotten), after
        seen = len(leader.rejects())
        await self.until(lambda: len(leader.rejects()) > seen, "it doubts the record")
        assert leader.rejects()[-1].first == start, f"doubt: {leader.rejects()[-1]} for {start}"
        leader.log = right
        hello = await self.again("after a rotten record")
        self.hello(hello, end=start, history=self.noted(start), life=1)
        await self.follows("after a rotten record")
        await leader.say(Beat(0, 0), 9)
        leader.changes, leader.speaks = {"crc": 1}, False  # what it is sent may hide its answer
        seen = len(leader.rejects())
        await self.again("before another log of the same epochs")
        await self.until(lambda: len(leader.rejects()) > seen, "it doubts the log")
        assert self.log() == leader.log[: leader.upto], "log: changed for another log"
        leader.changes, leader.speaks = {}, True
        await self.again("after another log of the same epochs")

    async def ends(self) -> None:
        """It ends in the middle, and with what fills a file, and begins again with what it had said
        that it has."""
        leader = self.leader
        for life in (2, 3):
            more = self.random.randint(500, 4000)
            leader.send_upto(min(leader.upto + more, len(leader.log) - 700))
            await trio.sleep(self.random.random() * 0.1)
            # A kill leaves the page cache, whatever the policy; without power it is gone.
            await self.ends_in(life, is_power=self.end == "power" or (life == 3 and self.loses))
        await self.copies_a_filler()
        await self.ends_in(4, is_power=self.end == "power")

    async def copies_a_filler(self) -> None:
        """And nothing behind it: there is no room for another file."""
        leader = self.leader
        fillers = [end for end in ends_of(leader.log) if end % SEGMENT == 0]
        disk = self.stage.simulation.process(NODE).disk
        disk.quota = disk.allocated() + ROOM
        leader.send_upto(min(end for end in fillers if end > leader.upto))
        await self.follows("up to the end of a file")

    async def ends_in(self, life: int, *, is_power: bool) -> None:
        """Its next life is this one."""
        leader = self.leader
        had = leader.acks[-1] if leader.acks else Ack(0, 0, 0)
        least = had.durable if self.end == "power" else had.received
        seen = len(leader.hellos)
        loses = is_power and self.policy is Policy.MEMORY
        least = 0 if loses else least

        def end_it() -> None:
            if is_power:
                self.stage.simulation.power_cut(NODE, self.cut_mode)
            else:
                self.stage.simulation.kill(NODE)
            self.stage.begin(NODE, self.settings)

        await self.script.outside(end_it)
        await self.until(lambda: len(leader.hellos) > seen, "a HELLO after the end", 10)
        hello = leader.hellos[-1]
        assert hello.end >= least, f"loss: {hello.end}, and {least} was acknowledged"
        assert leader.whole(hello.end) == hello.end, f"hello: half a record: {hello.end}"
        self.hello(hello, end=hello.end, history=self.noted(hello.end), life=life)
        asked = self.controller.registrations[-1]
        told = (asked.incarnation, asked.promised, asked.groupUid, asked.end, asked.lossless)
        want = (life, leader.epoch, "uid", hello.end, not loses)
        assert told == want, f"registered: {told} for {want}"
        await self.follows(f"in life {life}")

    async def silence(self) -> None:
        """A leader that says nothing is given up: soon by a member, later by one that nobody waits
        for."""
        leader = self.leader
        life = self.controller.entry.replicas[1].incarnation
        for is_member, least_s, most_s in ((False, 2.5, 3.15), (True, 0.2, 0.45)):
            members = {2: 1, 1: life} if is_member else {2: 1}
            self.controller.publish(in_sync=members, eligible={})
            await trio.sleep(0.2)
            leader.speaks = False
            began = trio.current_time()
            await self.until(lambda: leader.stream is None, "it gives up", most_s)
            took_s = trio.current_time() - began
            assert took_s >= least_s, f"early: given up after {took_s} s"
            leader.speaks = True
            await self.follows("it speaks again")

    async def parts(self) -> None:
        """Another one leads, whose log parts from this one: the old one is told, what only it had
        goes, and all that the new one has comes."""
        old = self.leader
        old.confirm = min(old.confirm, self.parts_at)
        self.leads(3, 3)
        leader = self.leader
        leader.send_upto(self.parts_at + 300)
        await self.until(lambda: bool(leader.hellos), "it comes to the next leader", 3)
        self.hello(leader.hellos[0], end=leader.hellos[0].end, history=old.history[:2], life=4)
        fences = old.fences()
        assert [one.promised for one in fences] == [3], f"fenced: {fences}"
        await self.until(lambda: bool(leader.acks), "an acknowledgement", 3)
        await self.follows("of the next epoch")
        leader.upto = len(leader.log)
        await self.follows("to its end")

    async def confirmed_parts(self) -> None:
        """What was confirmed is cut off by the word of an operator only."""
        leader = self.leader
        leader.confirm = len(leader.log)
        mark = self.stage.nodes[NODE].failover.member.confirm  # type: ignore[union-attr]
        await self.until(lambda: mark.value == len(leader.log), "all is confirmed")
        held = self.log()
        other = self.leaders[2]
        other.history, other.upto = (*other.history, (4, len(other.log))), len(other.log)
        for epoch, unclean in ((4, ()), (5, (5,))):
            other.history = (*self.logs[2][1],)
            other.confirm = 0
            self.leads(2, epoch, unclean=unclean)
            hello = await self.again(f"epoch {epoch}")
            self.hello(hello, end=len(held), history=leader.history, life=4)
            if not unclean:
                await self.until(lambda: "was confirmed" in self.follower.refusal, "it refuses")
                assert self.log() == held, "log: what was confirmed is cut off"
        await self.follows("by the word of an operator")

    async def older_register(self) -> None:
        """A register that is older than what it has promised gives it nobody to follow."""
        seen = len(self.leader.hellos) + len(self.leaders[3].hellos)

        await self.script.outside(lambda: self.stage.simulation.kill(NODE))
        self.controller.publish(epoch=3, leader=None, in_sync={}, eligible={})
        self.controller.lead(3)
        await self.script.outside(lambda: self.stage.begin(NODE, self.settings))
        self.leaders[3].epoch = 4
        await trio.sleep(3)
        told = len(self.leader.hellos) + len(self.leaders[3].hellos)
        assert told == seen, "hello: to the leader of an older epoch"
        assert self.follower is None, "following: in an older epoch"
