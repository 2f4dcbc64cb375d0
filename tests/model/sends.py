"""Many sends in one read: mostly plain, in every encoding, some odd, one-way or in batches.

Each gets its answer, and the queues hold just what was sent; also while the disk is slower than
producers wait, and while it has no room.
"""

import errno
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.remoting.client import dial
from rocketbed.wire.command import Command, Encoding, RequestCode, ResponseCode
from rocketbed.wire.frame import FrameReader
from rocketbed.wire.headers import QueryMessageRequest
from rocketbed.wire.message import decode_messages
from rocketbed.wire.properties import decode_properties
from rocketbed.world.api import Stream, World
from tests.model.broker import Peer
from tests.model.drawn_sends import BATCH_TOPIC, BODY_MAX, TOPICS, Drawn, Send
from tests.model.script import Script
from tests.model.stage import PORT, SEGMENT, Stage

BURSTS: Final = 12
SLOW_S: Final = (0.6, 0.9)
"""Longer than producers wait: `TIMEOUT_MS`."""
SETTLED_S: Final = 8.0
END_MARK: Final = 8
"""Bytes that a file of the log keeps free for its end."""
TIMEOUT_MS: Final = 200
ADDED: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
Answer = ResponseCode
Place = tuple[str, int]


def run_sends(seed: int) -> str:
    digest = ""
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        name = f"sends/{seed}/{flush}"
        with Stage(name) as stage:
            settings = {"flushDiskType": flush, "syncFlushTimeout": TIMEOUT_MS}
            stage.node("master", settings)
            producer = Producer(stage, Random(name), is_slow=flush == "SYNC_FLUSH")
            Script(stage.simulation).play("peer", producer.main)
            digest += stage.simulation.digest()
    return digest


class Producer:
    """A producer, and what the queues must hold."""

    def __init__(self, stage: Stage, random: Random, *, is_slow: bool) -> None:
        self._stage, self._random, self._is_slow = stage, random, is_slow
        self._drawn = Drawn(random)
        self._stored: dict[Place, list[tuple[bytes, dict[str, str]]]] = {}
        """Body and properties of each message of a queue, in order."""
        self._ends: dict[Place, int] = {}

    async def main(self, world: World) -> None:
        async with trio.open_nursery() as nursery:
            peer = await self._dialled(world, nursery)
            for topic in TOPICS:
                await peer.create(topic=topic)
            await peer.create(topic=BATCH_TOPIC, attributes="+queue.type=BatchCQ")
            stream, reader = await world.network.connect("master", PORT), FrameReader()
            for number in range(BURSTS):
                await self._burst(stream, reader, number)
            for excess in (-1, 0, 1):
                await self._fill_file(stream, reader, excess)
            peer = await self._dialled(world, nursery)  # an idle connection is closed
            await self._check_queues(peer)
            await self._check_keys(peer)
            nursery.cancel_scope.cancel()

    async def _burst(self, stream: Stream, reader: FrameReader, number: int) -> None:
        disk = self._stage.simulation.process("master").disk
        is_slow, is_full = self._is_slow and number % 4 == 3, number % 4 == 2
        if is_slow:
            disk.sync_seconds = SLOW_S
        if is_full:
            disk.faults.append(
                SimFault(operation="write", path="*/commitlog/*", error=errno.ENOSPC, times=None)
            )
        sends = [self._drawn.send() for _ in range(self._random.choice((1, 5, 30)))]
        await stream.send_all(b"".join(send.frame for send in sends))
        self._check(sends, await answers_to(stream, reader, sends), is_slow, is_full)
        await trio.sleep(0.5)  # for one-way sends
        disk.faults.clear()
        disk.sync_seconds = (0.0, 0.0)
        await trio.sleep(SETTLED_S)

    @staticmethod
    async def _dialled(world: World, nursery: trio.Nursery) -> Peer:
        peer = Peer()
        peer.connection = await dial(world, ("master", PORT), peer.handlers)
        nursery.start_soon(peer.connection.run)
        return peer

    async def _fill_file(self, stream: Stream, reader: FrameReader, excess: int) -> None:
        """Fill a file of the log up to its end mark; with an excess the next file is begun."""
        begin, end = 0, SEGMENT
        while begin // SEGMENT < end // SEGMENT:  # the first record of a file follows filler
            begin, end = await self._send_size(stream, reader, 1)
        overhead = end - begin - 1
        while True:
            file_end = end - end % SEGMENT + SEGMENT
            size = file_end - end - END_MARK - overhead + excess
            if 0 < size <= BODY_MAX:
                break
            _, end = await self._send_size(stream, reader, BODY_MAX // 2)
        _, end = await self._send_size(stream, reader, size)
        expected = file_end + overhead + size if excess > 0 else file_end - END_MARK + excess
        assert end == expected, f"roll: excess {excess}: the log ends at {end}, not {expected}"

    async def _send_size(self, stream: Stream, reader: FrameReader, size: int) -> tuple[int, int]:
        """Send a message that differs from others in the size of its body only; return where the
        log ended before and after it."""
        log = self._stage.nodes["master"].store.log
        begin, send = log.written.value, self._drawn.plain_of(size)
        send.command.encoding = self._random.choice(list(Encoding))
        await stream.send_all(send.frame)
        self._check([send], await answers_to(stream, reader, [send]), False, False)
        return begin, log.written.value

    def _check(
        self, sends: list[Send], answers: dict[int, Command], is_slow: bool, is_full: bool
    ) -> None:
        """Compare code, place and ids of each answer; offsets rise in the order of the sends."""
        opaques = {send.command.opaque for send in sends if not send.is_oneway}
        assert answers.keys() == opaques, f"answers: {sorted(answers.keys() ^ opaques)}"
        last = -1
        for send in sends:
            place = send.topic, send.queue
            offset = self._ends.get(place, 0)
            is_stored = send.code == Answer.SUCCESS and not is_full
            if is_stored:
                self._store(send)
            if send.is_oneway:
                continue
            answer, code = answers[send.command.opaque], send.code
            if code == Answer.SUCCESS and is_full:
                code = Answer.SYSTEM_ERROR
            elif code == Answer.SUCCESS and is_slow and send.waits:
                code = Answer.FLUSH_DISK_TIMEOUT
            text = f"{place} {send.properties}: {answer.remark}"
            assert answer.code == code, f"code: {answer.code}, expected {code}: {text}"
            if not is_stored:
                continue
            fields = answer.fields
            actual = fields["queueId"], fields["queueOffset"]
            assert actual == (str(send.queue), str(offset)), f"answer: {actual}: {text}"
            offsets = [int(message_id[-16:], 16) for message_id in fields["msgId"].split(",")]
            count = 1 if send.batch_key else len(send.bodies)
            rises = [last, *offsets] == sorted({last, *offsets})
            assert len(offsets) == count and rises, f"answer: {offsets} after {last}: {text}"
            last = offsets[-1]
            if send.command.code == RequestCode.SEND_MESSAGE_V2:
                key = decode_properties(send.properties[0])["UNIQ_KEY"]
                assert fields.get("transactionId") == key, f"answer: {fields}, expected {key}"
            assert fields.get("batchUniqId") == send.batch_key, f"answer: {fields}: {text}"

    def _store(self, send: Send) -> None:
        place = send.topic, send.queue
        stored = self._stored.setdefault(place, [])
        if send.batch_key:
            stored.append((send.command.body, {}))
        else:
            added = ADDED if send.command.code == RequestCode.SEND_MESSAGE_V2 else {}
            properties = [decode_properties(text) | added for text in send.properties]
            stored += zip(send.bodies, properties, strict=True)
        self._ends[place] = self._ends.get(place, 0) + len(send.bodies)

    async def _check_queues(self, peer: Peer) -> None:
        """Read every queue from its beginning, whole and by tag."""
        for (topic, queue), stored in sorted(self._stored.items()):
            for tag in ("*",) if topic == BATCH_TOPIC else ("*", "red"):
                messages: list[Any] = []
                offset = 0
                while offset < self._ends[topic, queue]:
                    command = peer.pull_request(
                        topic=topic, queueId=queue, queueOffset=offset, tags=tag
                    )
                    assert peer.connection is not None
                    answer = await peer.connection.request(command, timeout_s=60)
                    messages += decode_messages(answer.body) if not answer.code else []
                    begin, offset = offset, int(answer.fields["nextBeginOffset"])
                    assert offset > begin, f"pull: {topic}/{queue} stays at {begin}"
                some = [row for row in stored if tag == "*" or row[1].get("TAGS") == tag]
                bodies = [message.body for message in messages]
                assert bodies == [body for body, _ in some], f"pull: {topic}/{queue} {tag}"
                if topic == BATCH_TOPIC:
                    continue
                for message, (_, expected) in zip(messages, some, strict=True):
                    actual = {name: message.properties.get(name) for name in expected}
                    assert actual == expected, f"properties: {actual}, expected {expected}"

    async def _check_keys(self, peer: Peer) -> None:
        """Query some messages by their unique keys."""
        bodies: dict[str, list[bytes]] = {}
        for (topic, _), stored in sorted(self._stored.items()):
            for body, properties in stored if topic == "T" else ():
                bodies.setdefault(properties["UNIQ_KEY"], []).append(body)
        for key in self._random.sample(sorted(bodies), min(len(bodies), 8)):
            header = QueryMessageRequest(
                topic="T", key=key, maxNum=8, beginTimestamp=0, endTimestamp=1 << 50
            )
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, header.encode(), 0)
            actual = [message.body for message in decode_messages(answer.body)]
            assert actual == bodies[key], f"query: {key}: {len(actual)} messages"


async def answers_to(stream: Stream, reader: FrameReader, sends: list[Send]) -> dict[int, Command]:
    """Return answers by opaque, as many as there are two-way sends, within a time."""
    answers: dict[int, Command] = {}
    count = sum(not send.is_oneway for send in sends)
    with trio.move_on_after(5):
        while len(answers) < count:
            for command in reader.feed(bytes(await stream.receive_some(65_536))):
                assert command.opaque not in answers, f"answers: {command.opaque} twice"
                answers[command.opaque] = command
    return answers
