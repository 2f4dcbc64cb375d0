"""Delayed messages, and messages that consumers send back, over several lives of one broker.

Meanwhile its disk is full or slow, records are damaged and repaired, and a topic is deleted and
recreated with fewer queues. Each message arrives once, when it is due, in its place and unchanged;
a damaged one once it is repaired; none of a topic that was deleted.
"""

import errno
from random import Random
from typing import Final

import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.remoting.client import dial
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.wire.message import StoredMessage
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.reading import all_of
from tests.model.redelivery_model import (
    DEAD,
    GROUP,
    NODE,
    RETRIES,
    RETRY_QUEUES,
    Expected,
    Key,
    Model,
    flip_bodies,
)
from tests.model.script import Script
from tests.model.stage import PORT, Stage

Code, Answer = RequestCode, ResponseCode
RETRY_MAX: Final = 2
DELAYS_S: Final = (1, 5, 10, 30, 60)
"""Delays of the first levels."""
FIRST_LEVEL: Final = 3
"""Level of the first repetition without a level from the consumer; each further one adds one."""
STEPS: Final = 30
SLOW_S: Final = (0.3, 0.6)
"""Time of a sync on a slow disk."""
LATE_MS: Final = 1500
"""Latest arrival after the due time."""
FULL_S: Final = 4.0
SETTINGS: Final = {
    "flushDiskType": "SYNC_FLUSH",
    "syncFlushTimeout": 200,
    "autoCreateTopicEnable": False,
}
ADDED: Final = ("WAIT", "DELAY", "REAL_TOPIC", "REAL_QID")
"""Properties that a message sent back does not keep."""


def run_redelivery(seed: int) -> str:
    with Stage(f"again/{seed}") as stage:
        random, model = Random(f"again/{seed}"), Model()
        script = Script(stage.simulation)
        for number, end in enumerate(("stop", "kill", "damage", "repair", "")):
            stage.node(NODE, SETTINGS)
            script.play("peer", Life(stage, random, model).main, number)
            if end == "kill":
                stage.simulation.kill(NODE)
            elif end:
                stage.stop(NODE)
            if end in ("damage", "repair"):
                flip_bodies(stage, model, random, is_repair=end == "repair")
        return stage.simulation.digest()


class Life:
    """A client between a start and an end of the node."""

    def __init__(self, stage: Stage, random: Random, model: Model) -> None:
        self._stage, self._random, self._model = stage, random, model

    async def main(self, world: World, life: int) -> None:
        self._world = world
        async with trio.open_nursery() as nursery:
            self._peer = Peer()
            address = self._stage.simulation.host(NODE).address
            self._peer.connection = await dial(world, (address, PORT), self._peer.handlers)
            nursery.start_soon(self._peer.connection.run)
            if not life:
                await self._prepare()
            steps = [self._delay, self._delay, self._send_back, self._send_back, self._pause]
            for number in range(STEPS if life < 3 else 0):
                await self._random.choice(steps)()
                if life == 1 and number == STEPS // 2:
                    await self._recreate_topic()
                    await self._fill_disk()
            if life in (0, 1):
                await trio.sleep(self._random.choice((0, 3, 12)))
            else:
                await trio.sleep(40 if life != 2 else 8)
            await self._check_arrivals()
            nursery.cancel_scope.cancel()

    async def _prepare(self) -> None:
        for topic in ("T", "U"):
            count = self._model.queues[topic]
            await self._peer.create(topic=topic, readQueueNums=count, writeQueueNums=count)
        await self._peer.put_group(
            group_name=GROUP, retry_queue_nums=RETRY_QUEUES, retry_max_times=RETRY_MAX
        )
        await self._check_refusals()
        await self._check_slow_disk()

    def _now_ms(self) -> int:
        return self._world.clock.wall_ms()

    def _expect_now(
        self, queue: int, body: bytes, properties: dict[str, str] | None = None
    ) -> None:
        """Expect a plain message that was just sent to T."""
        self._model.expected.append(
            Expected("T", queue, body, 0, properties or {}, latest_ms=self._now_ms())
        )

    def _drawn_message(self) -> tuple[bytes, dict[str, str]]:
        self._model.number += 1
        body = b"%d of %d " % (self._model.number, self._random.getrandbits(30))
        properties = {"UNIQ_KEY": f"K{self._model.number}-{self._random.getrandbits(30)}"}
        if self._random.random() < 0.5:
            properties |= {"TAGS": "red", "KEYS": "one two"}
        return body + bytes(self._random.choice((0, 9))), properties | {"own": "x"}

    async def _delay(self) -> None:
        """Send a delayed message."""
        body, properties = self._drawn_message()
        topic, level = self._random.choice("TU"), self._random.randint(1, len(DELAYS_S))
        queue = self._random.randrange(self._model.queues[topic])
        begin_ms = self._now_ms()
        answer = await self._peer.send(
            b=topic, e=queue, body=body, properties=properties | {"DELAY": str(level)}
        )
        due_ms = begin_ms + DELAYS_S[level - 1] * 1000
        latest_ms = due_ms + (self._now_ms() - begin_ms) + LATE_MS
        physical = int(answer.fields["msgId"][-16:], 16)
        self._model.expected.append(
            Expected(topic, queue, body, due_ms, properties, latest_ms, physical=physical)
        )

    async def _send_back(self) -> None:
        """Send back a new message, or one that was delivered again."""
        keys = {(message.body, message.times) for message in self._model.expected}
        retries = [
            message
            for message in await all_of(self._peer, RETRIES, self._random.randrange(RETRY_QUEUES))
            if (message.body, message.reconsume_times + 1) not in keys
        ]
        if retries and self._random.random() < 0.6:
            message = self._random.choice(retries)
        else:
            body, properties = self._drawn_message()
            queue = self._random.randrange(self._model.queues["T"])
            message = await self._send_and_read(queue, body, properties)
        await self._return(message, self._random.choice((-1, 0, 0, 1, 2)))

    async def _send_and_read(
        self, queue: int, body: bytes, properties: dict[str, str] | None = None
    ) -> StoredMessage:
        answer = await self._peer.send(b="T", e=queue, body=body, properties=properties)
        self._expect_now(queue, body, properties)
        await trio.sleep(0.02)  # until it is in its queue
        return (await all_of(self._peer, "T", queue, int(answer.fields["queueOffset"])))[0]

    async def _return(self, message: StoredMessage, level: int) -> Command:
        """Send it back with this level; below 0 for the dead letter queue."""
        times, limit = message.reconsume_times, self._random.choice((None, 0, 1, 2, 3))
        header = SendBackRequest(
            offset=message.physical_offset, group=GROUP, delayLevel=level, maxReconsumeTimes=limit
        )
        begin_ms = self._now_ms()
        answer = await self._peer.ask(Code.CONSUMER_SEND_MSG_BACK, header.encode(), 0)
        is_dead = level < 0 or times >= (RETRY_MAX if limit is None else limit)
        level = 0 if is_dead else level or FIRST_LEVEL + times
        due_ms = begin_ms + (1000 * DELAYS_S[level - 1] if level else 0)
        properties = {key: text for key, text in message.properties.items() if key not in ADDED}
        properties.setdefault("RETRY_TOPIC", message.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_message_id)
        latest_ms = due_ms + self._now_ms() - begin_ms + LATE_MS
        topic = DEAD if is_dead else RETRIES
        self._model.expected.append(
            Expected(topic, None, message.body, due_ms, properties, latest_ms, times + 1)
        )
        return answer

    async def _check_slow_disk(self) -> None:
        """Expect a warning in the answer while the disk is slow."""
        disk = self._stage.simulation.process(NODE).disk
        for seconds, remark in ((SLOW_S, "FLUSH_DISK_TIMEOUT"), ((0.0, 0.0), None)):
            message = await self._send_and_read(0, b"slow %d" % len(self._model.expected))
            disk.sync_seconds = seconds
            actual = (await self._return(message, 1)).remark
            assert actual == remark, f"sent back: {actual!r}, expected {remark!r}"
            await trio.sleep(2)
            disk.sync_seconds = (0.0, 0.0)

    async def _pause(self) -> None:
        await trio.sleep(self._random.choice((0.1, 1.0, 4.0)))

    async def _check_refusals(self) -> None:
        """Send back what cannot be sent back; nothing is delivered for it."""
        answer = await self._peer.send(b="T", body=b"here")
        self._expect_now(0, b"here")
        offset = int(answer.fields["msgId"][-16:], 16)
        answer = await self._peer.send(b="T", body=b"late", properties={"DELAY": "2"})
        delayed_offset = int(answer.fields["msgId"][-16:], 16)
        due_ms = self._now_ms() + DELAYS_S[1] * 1000
        self._model.expected.append(
            Expected("T", 0, b"late", due_ms - 100, {}, latest_ms=due_ms + LATE_MS)
        )
        for group, at, code, remark in (
            ("g" * 250, offset, Answer.INVALID_PARAMETER, "longer"),
            ("a b", offset, Answer.INVALID_PARAMETER, "illegal characters"),
            (GROUP, offset + 1, Answer.SYSTEM_ERROR, ""),
            (GROUP, 1 << 40, Answer.SYSTEM_ERROR, "look message by offset failed"),
            (GROUP, delayed_offset, Answer.SYSTEM_ERROR, "waits itself"),
        ):  # fmt: skip
            header = SendBackRequest(offset=at, group=group, delayLevel=0)
            answer = await self._peer.ask(Code.CONSUMER_SEND_MSG_BACK, header.encode(), code)
            assert remark in (answer.remark or ""), f"sent back: {answer.remark!r}"

    async def _recreate_topic(self) -> None:
        """Delete a topic with its waiting messages, and create it with fewer queues."""
        fields = TopicRequest(topic="U").encode()
        await self._peer.ask(Code.DELETE_TOPIC_IN_BROKER, fields, 0)
        count = self._random.choice((1, 2))
        await self._peer.create(topic="U", readQueueNums=count, writeQueueNums=count)
        self._model.queues["U"] = count
        self._model.expected = [one for one in self._model.expected if one.topic != "U"]

    async def _fill_disk(self) -> None:
        """Leave no room in the log for a while: messages due then arrive afterwards."""
        for _ in range(4):
            await self._delay()
        disk = self._stage.simulation.process(NODE).disk
        fault = SimFault(operation="write", path="*/commitlog/*", error=errno.ENOSPC, times=None)
        disk.faults.append(fault)
        begin_ms = self._now_ms()
        await trio.sleep(FULL_S)
        disk.faults.clear()
        end_ms = self._now_ms()
        for message in self._model.expected:
            if begin_ms - LATE_MS <= message.due_ms <= end_ms:
                message.latest_ms = max(message.latest_ms, end_ms + 3 * LATE_MS)

    async def _check_arrivals(self) -> None:
        """Read every queue of every topic."""
        now_ms, arrived = self._now_ms(), set[Key]()
        expected = {message.key: message for message in self._model.expected}
        for topic, count in self._model.queues.items():
            for queue in range(count + 1):
                for message in await all_of(self._peer, topic, queue):
                    key = topic, message.body, message.reconsume_times
                    assert message.queue_id == queue < count, f"place: queue {queue} of {topic}"
                    assert key in expected, f"arrival: {key} is not expected"
                    self._check(message, expected[key])
                    expected[key].physical = -1  # it no longer waits
                    arrived.add(key)
        for waiting in self._model.expected:
            is_due = waiting.latest_ms < now_ms and not waiting.is_damaged
            assert waiting.key in arrived or not is_due, f"lost: {waiting.key} at {now_ms}"

    def _check(self, message: StoredMessage, expected: Expected) -> None:
        name = f"{message.body!r} of {message.topic}/{message.queue_id}"
        early_ms = expected.due_ms - message.store_timestamp
        assert early_ms <= 0, f"early: {name}: {early_ms} ms"
        assert not expected.is_damaged or expected.physical < 0, f"damage: {name} was delivered"
        assert expected.queue in (None, message.queue_id), f"place: {name} is not {expected.queue}"
        actual = {key: message.properties.get(key) for key in expected.properties}
        assert actual == expected.properties, f"properties: {name}: {actual}"
