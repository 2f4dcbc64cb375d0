"""Many sends in one read: most of them plain, in every encoding, some odd, some one-way, batches
among them; each with the answer that it has to get, and just what was sent in the queues.

Also where the disk takes longer than a producer waits, and where it has no room.
"""

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.remoting.client import dial
from rocketbed.wire.command import ONEWAY_BIT, Command, Encoding, RequestCode, ResponseCode
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.wire.headers import QueryMessageRequest
from rocketbed.wire.message import BatchItem, decode_messages, encode_batch
from rocketbed.wire.properties import decode_properties
from rocketbed.world.api import Stream, World
from tests.model.broker import Peer
from tests.model.script import Script
from tests.model.stage import PORT, SEGMENT, Stage

BURSTS: Final = 12
QUEUES: Final = 4
TOPICS: Final = ("T", "U")
BATCH_QUEUES: Final = "C"
SLOW_S: Final = (0.6, 0.9)
"""Longer than producers wait: `TIMEOUT_MS`."""
SETTLED_S: Final = 8.0
BODY_MAX: Final = 4096
END_MARK: Final = 8
"""Bytes that a file of the log keeps free for its end."""
TIMEOUT_MS: Final = 200
ADDED: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
Answer = ResponseCode


@dataclass(slots=True, kw_only=True)
class Asked:
    """A send, and what it has to come to."""

    command: Command
    want: int
    """Code of its answer."""
    topic: str
    queue: int
    bodies: Sequence[bytes]
    properties: Sequence[str]
    waits: bool = True
    batch_key: str | None = None
    """Of an inner batch."""
    before: str = ""
    """A field that the header says once more, before, with another value."""

    @property
    def frame(self) -> bytes:
        data = encode(self.command)
        if not self.before or self.command.encoding is not Encoding.JSON:
            return data
        size = int.from_bytes(data[4:8])
        extra = f'"{self.before}":"7",'.encode()
        at = data.index(b'"extFields":{') + len(b'"extFields":{')
        lengths = struct.pack(">2i", len(data) - 4 + len(extra), size + len(extra))
        return lengths + data[8:at] + extra + data[at:]

    @property
    def is_oneway(self) -> bool:
        return bool(self.command.flag & ONEWAY_BIT)


def run_sends(seed: int) -> str:
    digest = ""
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        name = f"sends/{seed}/{flush}"
        with Stage(name) as stage:
            settings = {"flushDiskType": flush, "syncFlushTimeout": TIMEOUT_MS}
            stage.node("master", settings)
            sends = Sends(stage, Random(name), is_slow=flush == "SYNC_FLUSH")
            Script(stage.simulation).play("peer", sends.main)
            digest += stage.simulation.digest()
    return digest


class Sends:
    """A producer by hand."""

    def __init__(self, stage: Stage, random: Random, *, is_slow: bool) -> None:
        self._stage, self._random, self._is_slow = stage, random, is_slow
        self._number = 0
        self._places: dict[tuple[str, int], list[tuple[bytes, dict[str, str]]]] = {}
        """By topic and queue the bodies and properties that it holds, in order."""
        self._ends: dict[tuple[str, int], int] = {}

    async def main(self, world: World) -> None:
        disk = self._stage.simulation.process("master").disk
        async with trio.open_nursery() as nursery:
            peer = await self._dialled(world, nursery)
            for topic in TOPICS:
                await peer.create(topic=topic)
            await peer.create(topic=BATCH_QUEUES, attributes="+queue.type=BatchCQ")
            stream = await world.network.connect("master", PORT)
            reader = FrameReader()
            for number in range(BURSTS):
                slow = self._is_slow and number % 4 == 3
                disk.sync_seconds = SLOW_S if slow else disk.sync_seconds
                full = not slow and number % 4 == 2
                if full:
                    disk.faults.append(
                        SimFault(
                            operation="write", path="*/commitlog/*", error=errno.ENOSPC, times=None
                        )
                    )
                asked = [self._drawn() for _ in range(self._random.choice((1, 5, 30)))]
                await stream.send_all(b"".join(one.frame for one in asked))
                answers = await _answers(stream, reader, asked)
                self._judge(asked, answers, is_slow=slow, is_full=full)
                await trio.sleep(0.5)  # who asks one-way is not told that it was heard
                disk.faults.clear()
                disk.sync_seconds = (0.0, 0.0)
                await trio.sleep(SETTLED_S)
            for more in (-1, 0, 1):
                await self._to_the_end(stream, reader, more)
            peer = await self._dialled(world, nursery)  # an idle connection is closed
            await self._read_back(peer)
            nursery.cancel_scope.cancel()

    @staticmethod
    async def _dialled(world: World, nursery: trio.Nursery) -> Peer:
        peer = Peer()
        peer.connection = await dial(world, ("master", PORT), peer.handlers)
        nursery.start_soon(peer.connection.run)
        return peer

    async def _to_the_end(self, stream: Stream, reader: FrameReader, more: int) -> None:
        """A plain send that fills a file of the log but for the mark of its end, or is so many
        bytes longer: that one stands in the next file."""
        before, end = 0, SEGMENT
        while before // SEGMENT < end // SEGMENT:  # the first of a file stands behind its filler
            before, end = await self._same(stream, reader, 1)
        rest = end - before - 1
        while True:
            start = end - end % SEGMENT + SEGMENT
            room = start - end - END_MARK - rest + more
            if 0 < room <= BODY_MAX:
                break
            _, end = await self._same(stream, reader, BODY_MAX // 2)
        _, end = await self._same(stream, reader, room)
        want = start - END_MARK + more if more <= 0 else start + rest + room
        assert end == want, f"roll: {more} more: the log ends at {end} for {want}"

    async def _same(self, stream: Stream, reader: FrameReader, size: int) -> tuple[int, int]:
        """A message with a body of that size, and else as long as any; where the log ended before
        and behind it."""
        log = self._stage.nodes["master"].store.log
        before = log.written.value
        self._number += 1
        text = f"UNIQ_KEY\x01K{self._number:09d}\x02WAIT\x01true"
        asked = self._send(Answer.SUCCESS, text, bytes(size), b="T", e=0)
        asked.command.opaque = self._number
        asked.command.encoding = self._random.choice(list(Encoding))
        await stream.send_all(asked.frame)
        self._judge([asked], await _answers(stream, reader, [asked]), is_slow=False, is_full=False)
        return before, log.written.value

    # --- what is sent

    def _drawn(self) -> Asked:
        kinds = (self._plain, self._plain, self._plain, self._odd, self._refused, self._batch)
        asked = self._random.choice(kinds)()
        self._number += 1
        asked.command.opaque = self._number
        if self._random.random() < 0.15:
            asked.command.flag |= ONEWAY_BIT
        asked.command.encoding = self._random.choice(list(Encoding))
        if self._random.random() < 0.1:
            asked.before = self._random.choice("befghi")
        return asked

    def _unique(self) -> str:
        return f"K{self._random.getrandbits(40):X}"

    def _string(self, *, key: str, waits: bool) -> str:
        """Properties as producers write them, the last one ended or not."""
        random = self._random
        pairs = [("UNIQ_KEY", key), ("WAIT", "true" if waits else "false")]
        if random.random() < 0.5:
            pairs.append(("TAGS", random.choice(("red", "violet"))))
        if random.random() < 0.4:
            pairs.append(("KEYS", random.choice(("one", "one two"))))
        if random.random() < 0.3:
            pairs.append(("own", random.choice(("x", "ü", "a b"))))
        random.shuffle(pairs)
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        return text[:-1] if random.random() < 0.5 else text

    def _send(self, want: int, text: str, body: bytes, waits: bool = True, **changes: Any) -> Asked:
        random = self._random
        fields: dict[str, Any] = {"b": random.choice(TOPICS), "e": random.randrange(QUEUES)}
        fields |= {"f": random.choice((0, 1)), "h": random.choice((0, 7)), "i": text}
        fields |= {"g": 1_700_000_000_000 + random.randrange(10**6)} | changes
        command = Peer.send_request(body=body, **fields)
        return Asked(
            command=command,
            want=want,
            topic=fields["b"],
            queue=fields["e"],
            bodies=[body],
            properties=[text],
            waits=waits,
        )

    def _body(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 20, 200, 1500)))

    def _plain(self) -> Asked:
        text = self._string(key=self._unique(), waits=True)
        return self._send(Answer.SUCCESS, text, self._body())

    def _odd(self) -> Asked:
        """What only the general way takes."""
        random, body = self._random, self._body()
        waits, key = random.random() < 0.5, self._unique()
        text = self._string(key=random.choice((key, f"{key}-1", f'{key}"')), waits=waits)
        if random.random() < 0.3:
            return self._send(
                Answer.SUCCESS, text.rstrip("\x02") + "\x02DELAY\x010\x02", body, waits
            )
        if random.random() < 0.5:
            before = random.choice(("bare\x02", "own\x01a\x01b\x02", "\x02", "own\x01\x02"))
            return self._send(Answer.SUCCESS, before + text, body, waits)
        if random.random() < 0.3:
            group = "p" * random.choice((1000, 2000))
            return self._send(Answer.SUCCESS, text, body, waits, a=group)
        return self._send(Answer.SUCCESS, text, body, waits)

    def _refused(self) -> Asked:
        """At the edge of a limit, and beyond it."""
        text = self._string(key=self._unique(), waits=True)
        body = self._body()
        cases: tuple[tuple[int, str, bytes, dict[str, Any]], ...] = (
            (Answer.INVALID_PARAMETER, text, body, {"e": QUEUES}),
            (Answer.SUCCESS, text, body, {"e": QUEUES - 1}),
            (Answer.TOPIC_NOT_EXIST, text, body, {"b": "unknown"}),
            (Answer.MESSAGE_ILLEGAL, text, b"", {}),
            (Answer.SUCCESS, text, bytes(4096), {}),
            (Answer.MESSAGE_ILLEGAL, text, bytes(4097), {}),
            (Answer.NO_PERMISSION, text, body, {"f": 4}),
            (Answer.MESSAGE_ILLEGAL, text.rstrip("\x02") + "\x02INNER_NUM\x012\x02", body, {}),
        )
        want, text, body, changes = self._random.choice(cases)
        return self._send(want, text, body, **changes)

    def _batch(self) -> Asked:
        """Several messages in one request; none is refused."""
        random = self._random
        count = random.choice((0, 1, 2, 5))
        key, inner = self._unique(), random.random() < 0.5
        texts = [f"UNIQ_KEY\x01{key}{number}\x02" for number in range(count)]
        items = [BatchItem(self._body()[:500], 0, text.encode()) for text in texts]
        topic = BATCH_QUEUES if inner else random.choice(TOPICS)
        asked = self._send(
            Answer.SUCCESS if count else Answer.MESSAGE_ILLEGAL,
            f"UNIQ_KEY\x01{key}\x02",
            encode_batch(items),
            b=topic,
            m=True,
        )
        asked.command.code = RequestCode.SEND_BATCH_MESSAGE
        asked.bodies, asked.properties = [item.body for item in items], texts
        asked.batch_key = key if inner else None
        return asked

    # --- what has to come of it

    def _judge(
        self, asked: list[Asked], answers: dict[int, Command], *, is_slow: bool, is_full: bool
    ) -> None:
        known = {one.command.opaque for one in asked if not one.is_oneway}
        assert answers.keys() == known, f"answers: {sorted(answers.keys() ^ known)}"
        last = -1
        for one in asked:
            number = self._ends.get((one.topic, one.queue), 0)
            is_stored = one.want == Answer.SUCCESS and not is_full
            if is_stored:
                kept = self._places.setdefault((one.topic, one.queue), [])
                if one.batch_key:
                    kept.append((one.command.body, {}))
                else:
                    added = ADDED if one.command.code == RequestCode.SEND_MESSAGE_V2 else {}
                    read = [decode_properties(text) | added for text in one.properties]
                    kept += zip(one.bodies, read, strict=True)
                self._ends[one.topic, one.queue] = number + len(one.bodies)
            if one.is_oneway:
                continue
            answer = answers[one.command.opaque]
            want = one.want
            if want == Answer.SUCCESS and is_full:
                want = Answer.SYSTEM_ERROR
            elif want == Answer.SUCCESS and is_slow and one.waits:
                want = Answer.FLUSH_DISK_TIMEOUT
            what = f"{one.topic}/{one.queue} {one.properties}: {answer.remark}"
            assert answer.code == want, f"code: {answer.code} for {want}: {what}"
            if not is_stored:
                continue
            fields = answer.fields
            told = (fields["queueId"], fields["queueOffset"])
            assert told == (str(one.queue), str(number)), f"answer: {told}, {number}: {what}"
            offsets = [int(one_id[-16:], 16) for one_id in fields["msgId"].split(",")]
            count = 1 if one.batch_key else len(one.bodies)
            rising = [last, *offsets] == sorted({last, *offsets})
            assert len(offsets) == count and rising, f"answer: {offsets} behind {last}: {what}"
            last = offsets[-1]
            if one.command.code == RequestCode.SEND_MESSAGE_V2:
                key = decode_properties(one.properties[0])["UNIQ_KEY"]
                assert fields.get("transactionId") == key, f"answer: {fields} for {key}"
            assert fields.get("batchUniqId") == one.batch_key, f"answer: {fields}: {what}"

    async def _read_back(self, peer: Peer) -> None:
        """Every queue from its beginning, by tag, and some by key."""
        for (topic, queue), wanted in sorted(self._places.items()):
            for tag in ("*",) if topic == BATCH_QUEUES else ("*", "red"):
                found: list[Any] = []
                offset = 0
                while offset < self._ends[topic, queue]:
                    asked = peer.pull_request(
                        topic=topic, queueId=queue, queueOffset=offset, tags=tag
                    )
                    assert peer.connection is not None
                    answer = await peer.connection.request(asked, timeout_s=60)
                    found += decode_messages(answer.body) if answer.code == Answer.SUCCESS else []
                    after = int(answer.fields["nextBeginOffset"])
                    assert after > offset, f"pull: {topic}/{queue} stays at {offset}"
                    offset = after
                some = [one for one in wanted if tag == "*" or one[1].get("TAGS") == tag]
                bodies = [message.body for message in found]
                assert bodies == [body for body, _ in some], f"pull: {topic}/{queue} {tag}"
                if topic == BATCH_QUEUES:
                    continue
                for message, (_, want) in zip(found, some, strict=True):
                    got = {name: message.properties.get(name) for name in want}
                    assert got == want, f"properties: {got} for {want}"
        await self._by_keys(peer)

    async def _by_keys(self, peer: Peer) -> None:
        wanted: dict[str, list[bytes]] = {}
        for (topic, _), kept in sorted(self._places.items()):
            for body, properties in kept if topic == "T" else ():
                wanted.setdefault(properties["UNIQ_KEY"], []).append(body)
        for key in self._random.sample(sorted(wanted), min(len(wanted), 8)):
            header = QueryMessageRequest(
                topic="T", key=key, maxNum=8, beginTimestamp=0, endTimestamp=1 << 50
            )
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, header.encode(), 0)
            bodies = [message.body for message in decode_messages(answer.body)]
            assert bodies == wanted[key], f"query: {key}: {len(bodies)} messages"


async def _answers(stream: Stream, reader: FrameReader, asked: list[Asked]) -> dict[int, Command]:
    """By opaque, as many as there have to be, and a moment for more."""
    found: dict[int, Command] = {}
    wanted = sum(not one.is_oneway for one in asked)
    with trio.move_on_after(5):
        while len(found) < wanted:
            for command in reader.feed(bytes(await stream.receive_some(65_536))):
                assert command.opaque not in found, f"answers: {command.opaque} twice"
                found[command.opaque] = command
    return found
