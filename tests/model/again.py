"""Messages that come again, or later: delayed, sent back by their consumers, over lives of one
broker whose disk is full for a while or has lost one of them, with a topic that is deleted and made
again with fewer queues.

Each that waits comes once, when it is due, to its place and as it was; one that cannot be read then
comes when it is mended; of a topic that was deleted meanwhile none comes.
"""

import errno
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.remoting.client import dial
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.wire.message import StoredMessage
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.mending import edited
from tests.model.reading import all_of
from tests.model.script import Script
from tests.model.stage import PORT, SEGMENT, Stage

Code, Answer = RequestCode, ResponseCode
NODE: Final = "master"
GROUP, RETRIES, DEAD = "back", "%RETRY%back", "%DLQ%back"
RETRY_QUEUES, RETRY_MAX = 2, 2
DELAYS_S: Final = (1, 5, 10, 30, 60)
"""Of the first levels."""
FIRST_LEVEL: Final = 3
"""docs: of the first repetition, where the consumer asks for none; each one adds one."""
STEPS: Final = 30
SLOW_S: Final = (0.3, 0.6)
"""What a sync takes on a disk that is slow for a while."""
LATE_MS: Final = 1500
"""After it is due a message has come."""
TROUBLE_S: Final = 4.0
SETTINGS: Final = {
    "flushDiskType": "SYNC_FLUSH",
    "syncFlushTimeout": 200,
    "autoCreateTopicEnable": False,
}


@dataclass(slots=True)
class Waits:
    """A message that is to come."""

    topic: str
    queue: int | None
    """None: any of its topic."""
    body: bytes
    due_ms: int
    properties: dict[str, str]
    times: int = 0
    """How often it has come before."""
    physical: int = -1
    """Where it waits in the log."""
    is_lost: bool = False
    """Whether its bytes are spoilt now."""
    latest_ms: int = 0
    """When it has to be there, if the node was in trouble then."""


@dataclass(slots=True)
class Model:
    waits: list[Waits] = field(default_factory=list)
    queues: dict[str, int] = field(
        default_factory=lambda: {"T": 3, "U": 4, RETRIES: RETRY_QUEUES, DEAD: 1}
    )
    number: int = 0


def run_again(seed: int) -> str:
    with Stage(f"again/{seed}") as stage:
        random, model = Random(f"again/{seed}"), Model()
        script = Script(stage.simulation)
        for life, end in enumerate(("stop", "kill", "rot", "mend", "")):
            node = stage.node(NODE, SETTINGS)
            lives = Life(stage, script, random, model)
            script.play("peer", lives.main, life)
            if end == "kill":
                stage.simulation.kill(NODE)
            elif end:
                stage.stop(NODE)
            if end in ("rot", "mend"):
                _spoil(stage, model, random, mends=end == "mend")
            del node
        return stage.simulation.digest()


def _spoil(stage: Stage, model: Model, random: Random, *, mends: bool) -> None:
    """One byte of the body of a message that waits; or it is what it was."""
    now_ms = round(stage.simulation.timeline.now / 1e6) + 1_700_000_000_000
    if mends:
        chosen = [one for one in model.waits if one.is_lost]
    else:
        left = [one for one in model.waits if one.due_ms > now_ms + 5000 and one.physical >= 0]
        chosen = random.sample(left, min(len(left), 2))
    host = stage.simulation.host(NODE)

    def change(disk: SimDisk, one: Waits) -> None:
        start = one.physical // SEGMENT * SEGMENT
        path = f"/store/commitlog/{start:020d}"
        data = bytearray(disk.contents(path))
        at = data.index(one.body[1:], one.physical - start) - 1
        data[at] ^= 4
        disk.replace_contents(path, bytes(data))

    for one in chosen:
        host.image = edited(host.image, partial(change, one=one))
        one.is_lost = not mends
        one.latest_ms = now_ms + 30_000  # it comes once a start has looked at it again


class Life:
    """A client by hand, between a start and an end."""

    def __init__(self, stage: Stage, script: Script, random: Random, model: Model) -> None:
        self._stage, self._script, self._random, self._model = stage, script, random, model

    async def main(self, world: World, life: int) -> None:
        self._world = world
        async with trio.open_nursery() as nursery:
            self._peer = Peer()
            address = self._stage.simulation.host(NODE).address
            self._peer.connection = await dial(world, (address, PORT), self._peer.handlers)
            nursery.start_soon(self._peer.connection.run)
            if not life:
                for topic in ("T", "U"):
                    count = self._model.queues[topic]
                    await self._peer.create(topic=topic, readQueueNums=count, writeQueueNums=count)
                await self._peer.put_group(
                    group_name=GROUP, retry_queue_nums=RETRY_QUEUES, retry_max_times=RETRY_MAX
                )
                await self._refused()
                await self._slowly()
            steps = [self._later, self._later, self._back, self._back, self._rest]
            for number in range(STEPS if life < 3 else 0):
                await self._random.choice(steps)()
                if life == 1 and number == STEPS // 2:
                    await self._delete()
                    await self._trouble()
            if life in (0, 1):
                await trio.sleep(self._random.choice((0, 3, 12)))
            else:
                await trio.sleep(40 if life != 2 else 8)
            await self._look()
            nursery.cancel_scope.cancel()

    def _now_ms(self) -> int:
        return self._world.clock.wall_ms()

    # --- what is asked

    def _drawn(self) -> tuple[bytes, dict[str, str]]:
        self._model.number += 1
        body = b"%d of %d " % (self._model.number, self._random.getrandbits(30))
        found = {"UNIQ_KEY": f"K{self._model.number}-{self._random.getrandbits(30)}"}
        if self._random.random() < 0.5:
            found |= {"TAGS": "red", "KEYS": "one two"}
        return body + bytes(self._random.choice((0, 9))), found | {"own": "x"}

    async def _later(self) -> None:
        """A delayed message."""
        body, properties = self._drawn()
        topic = self._random.choice("TU")
        queue = self._random.randrange(self._model.queues[topic])
        level = self._random.randint(1, len(DELAYS_S))
        before_ms = self._now_ms()
        answer = await self._peer.send(
            b=topic, e=queue, body=body, properties=properties | {"DELAY": str(level)}
        )
        physical = int(answer.fields["msgId"][-16:], 16)
        due_ms = before_ms + DELAYS_S[level - 1] * 1000
        one = Waits(topic, queue, body, due_ms, properties, physical=physical)
        one.latest_ms = due_ms + (self._now_ms() - before_ms) + LATE_MS
        self._model.waits.append(one)

    async def _back(self) -> None:
        """A message that was got is sent back: a new one, or one that has come again."""
        known = {(one.body, one.times) for one in self._model.waits}
        came = [
            one
            for one in await all_of(self._peer, RETRIES, self._random.randrange(RETRY_QUEUES))
            if (one.body, one.reconsume_times + 1) not in known
        ]
        if came and self._random.random() < 0.6:
            message = self._random.choice(came)
        else:
            body, properties = self._drawn()
            queue = self._random.randrange(self._model.queues["T"])
            sent = await self._peer.send(b="T", e=queue, body=body, properties=properties)
            at = int(sent.fields["queueOffset"])
            await trio.sleep(0.02)  # till it is in its queue
            message = (await all_of(self._peer, "T", queue, at))[0]
            one = Waits("T", queue, body, self._now_ms() - 10_000, properties)
            one.latest_ms = self._now_ms()
            self._model.waits.append(one)
        await self._sends_back(message, self._random.choice((-1, 0, 0, 1, 2)))

    async def _sends_back(self, message: StoredMessage, level: int) -> Command:
        times, most = message.reconsume_times, self._random.choice((None, 0, 1, 2, 3))
        header = SendBackRequest(
            offset=message.physical_offset, group=GROUP, delayLevel=level, maxReconsumeTimes=most
        )
        before_ms = self._now_ms()
        answer = await self._peer.ask(Code.CONSUMER_SEND_MSG_BACK, header.encode(), 0)
        is_dead = level < 0 or times >= (RETRY_MAX if most is None else most)
        level = 0 if is_dead else level or FIRST_LEVEL + times
        due_ms = before_ms + (1000 * DELAYS_S[level - 1] if level else 0)
        properties = {
            name: value for name, value in message.properties.items()
            if name not in ("WAIT", "DELAY", "REAL_TOPIC", "REAL_QID")
        }  # fmt: skip
        properties.setdefault("RETRY_TOPIC", message.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_message_id)
        again = Waits(DEAD if is_dead else RETRIES, None, message.body, due_ms, properties)
        again.times = times + 1
        again.latest_ms = due_ms + self._now_ms() - before_ms + LATE_MS
        self._model.waits.append(again)
        return answer

    async def _slowly(self) -> None:
        """On a disk that is slow it is sent back all the same, and the answer says that it may not
        be safe; on another one that it is."""
        disk = self._stage.simulation.process(NODE).disk
        for seconds, remark in ((SLOW_S, "FLUSH_DISK_TIMEOUT"), ((0.0, 0.0), None)):
            body = b"slow %d" % len(self._model.waits)
            at = int((await self._peer.send(b="T", body=body)).fields["queueOffset"])
            one = Waits("T", 0, body, 0, {}, latest_ms=self._now_ms())
            self._model.waits.append(one)
            await trio.sleep(0.02)  # till it is in its queue
            message = (await all_of(self._peer, "T", 0, at))[0]
            disk.sync_seconds = seconds
            told = (await self._sends_back(message, 1)).remark
            assert told == remark, f"sent back: {told!r} for {remark!r}"
            await trio.sleep(2)
            disk.sync_seconds = (0.0, 0.0)

    async def _rest(self) -> None:
        await trio.sleep(self._random.choice((0.1, 1.0, 4.0)))

    async def _refused(self) -> None:
        """What cannot be sent back, each with the reason; nothing comes of it."""
        sent = await self._peer.send(b="T", body=b"here")
        self._model.waits.append(Waits("T", 0, b"here", 0, {}, latest_ms=self._now_ms()))
        here = int(sent.fields["msgId"][-16:], 16)
        delayed = await self._peer.send(b="T", body=b"late", properties={"DELAY": "2"})
        waits = int(delayed.fields["msgId"][-16:], 16)
        due_ms = self._now_ms() + DELAYS_S[1] * 1000
        late = Waits("T", 0, b"late", due_ms - 100, {}, latest_ms=due_ms + LATE_MS)
        self._model.waits.append(late)
        for group, offset, code, says in (
            ("g" * 250, here, Answer.INVALID_PARAMETER, "longer"),
            ("a b", here, Answer.INVALID_PARAMETER, "illegal characters"),
            (GROUP, here + 1, Answer.SYSTEM_ERROR, ""),
            (GROUP, 1 << 40, Answer.SYSTEM_ERROR, "look message by offset failed"),
            (GROUP, waits, Answer.SYSTEM_ERROR, "waits itself"),
        ):  # fmt: skip
            header = SendBackRequest(offset=offset, group=group, delayLevel=0)
            answer = await self._peer.ask(Code.CONSUMER_SEND_MSG_BACK, header.encode(), code)
            assert says in (answer.remark or ""), f"sent back: {answer.remark!r} for {says!r}"

    async def _delete(self) -> None:
        """What waits for a topic goes with it; what is sent to the new one comes."""
        fields = TopicRequest(topic="U").encode()
        await self._peer.ask(Code.DELETE_TOPIC_IN_BROKER, fields, 0)
        count = self._random.choice((1, 2))
        await self._peer.create(topic="U", readQueueNums=count, writeQueueNums=count)
        self._model.queues["U"] = count
        self._model.waits = [one for one in self._model.waits if one.topic != "U"]

    async def _trouble(self) -> None:
        """No room in the log for a while: what was due then comes when there is."""
        for _ in range(4):
            await self._later()
        disk = self._stage.simulation.process(NODE).disk
        fault = SimFault(operation="write", path="*/commitlog/*", error=errno.ENOSPC, times=None)
        disk.faults.append(fault)
        began_ms = self._now_ms()
        await trio.sleep(TROUBLE_S)
        disk.faults.clear()
        ended_ms = self._now_ms()
        for one in self._model.waits:
            if began_ms - LATE_MS <= one.due_ms <= ended_ms:
                one.latest_ms = max(one.latest_ms, ended_ms + 3 * LATE_MS)

    # --- what comes

    async def _look(self) -> None:
        """Every queue of every topic."""
        now_ms = self._now_ms()
        came: dict[tuple[str, bytes, int], StoredMessage] = {}
        for topic, count in self._model.queues.items():
            for queue in range(count + 1):
                for one in await all_of(self._peer, topic, queue):
                    place = topic, one.body, one.reconsume_times
                    assert one.queue_id == queue < count, f"place: {one.queue_id} of {topic}"
                    known = [
                        wait for wait in self._model.waits
                        if (wait.topic, wait.body, wait.times) == place
                    ]  # fmt: skip
                    assert bool(known), f"came: {place}, which nobody waits for"
                    self._judge(one, known[0])
                    known[0].physical = -1  # it waits no more
                    came[place] = one
        for wait in self._model.waits:
            place = wait.topic, wait.body, wait.times
            is_due = wait.latest_ms < now_ms and not wait.is_lost
            assert place in came or not is_due, f"lost: {place}, due at {wait.due_ms}: {now_ms}"

    def _judge(self, one: StoredMessage, wait: Waits) -> None:
        what = f"{one.body!r} of {one.topic}/{one.queue_id}"
        early_ms = wait.due_ms - one.store_timestamp
        assert early_ms <= 0, f"early: {what}: {early_ms} ms"
        assert not wait.is_lost or wait.physical < 0, f"damage: {what} was given"
        is_right = wait.queue is None or one.queue_id == wait.queue
        assert is_right, f"place: {what}, not in {wait.queue}"
        told = {name: one.properties.get(name) for name in wait.properties}
        assert told == wait.properties, f"properties: {what}: {told} for {wait.properties}"
