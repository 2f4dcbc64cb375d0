"""One node asked for messages and bounds: by key and unique key, by id, by time, at the limits of
an answer, of queues of both kinds that hold some, one or no message."""

from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.wire.bodies import KvTable
from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.command import RequestCode, ResponseCode, request
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.wire.headers import (
    MaxOffsetRequest,
    QueryConsumerOffsetRequest,
    QueryMessageRequest,
    QueueRequest,
    SearchOffsetRequest,
    ViewMessageRequest,
)
from rocketbed.wire.headers_admin import ResetOffsetRequest
from rocketbed.wire.message import BatchItem, StoredMessage, decode_messages, encode_batch
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.broker import HOST, PORT, SETTINGS, Peer

Code, Answer = RequestCode, ResponseCode
QUEUES: Final = 2
SMALL: Final = 70
QUERY_MAX, UNIQUE_MAX = 64, 32
"""Messages in one answer, by a key and by a unique one."""
LARGE, LARGE_BODY = 10, 900_000
ANSWER_MAX: Final = 8 << 20
"""Bytes in one answer to a query."""
TOPIC, BATCHES = "T", "C"


def run_questions(seed: int) -> str:
    return run_alone(_serve, seed, seed=f"questions/{seed}").digest


async def _serve(world: World, seed: int) -> None:
    config, _ = make_config(settings_from_options(list(SETTINGS)))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_node, world, config))
        peer = await Peer.dialled(world, nursery)
        questions = Questions(world, peer, Random(f"questions/{seed}"))
        await questions.run()
        nursery.cancel_scope.cancel()


class Questions:
    """Who asks."""

    def __init__(self, world: World, peer: Peer, random: Random) -> None:
        self._world, self._peer, self._random = world, peer, random
        self._sent: list[StoredMessage] = []
        """Of queue 0."""

    async def run(self) -> None:
        peer = self._peer
        await peer.create(readQueueNums=QUEUES, writeQueueNums=QUEUES)
        await peer.create(topic="other")
        await peer.create(topic=BATCHES, attributes="+queue.type=BatchCQ")
        await peer.put_group(group_name="g")
        await self._bounds(TOPIC, 0, 0, 0)
        await self._bounds(BATCHES, 0, -1, 0)  # RocketMQ's batch queue that never had any
        await self._new_group(begins=False)
        for number in range(SMALL):
            text = {"KEYS": "often", "UNIQ_KEY": "always"}
            await peer.send(body=b"%d" % number, properties=text, d=QUEUES)
            await trio.sleep(self._random.choice((0, 0, 0.01)))
        found = await peer.pull(Answer.SUCCESS, maxMsgNums=32)
        self._sent = decode_messages(found.body)
        await self._bounds(TOPIC, 0, 0, SMALL)
        await self._new_group(begins=True)
        await self._batches()
        await self._keys()
        await self._ids()
        await self._just_sent()
        await self._times()
        await self._resets()
        await self._large()

    async def _bounds(self, topic: str, queue: int, first: int, end: int) -> None:
        for code, header, want in (
            (Code.GET_MIN_OFFSET, QueueRequest(topic=topic, queueId=queue), first),
            (Code.GET_MAX_OFFSET, MaxOffsetRequest(topic=topic, queueId=queue), end),
        ):
            told = (await self._peer.ask(code, header.encode(), 0)).fields["offset"]
            assert told == str(want), f"bounds: {code.name} of {topic}/{queue}: {told}, {want}"
        header = QueueRequest(topic=topic, queueId=queue)
        at = (await self._peer.ask(Code.GET_EARLIEST_MSG_STORETIME, header.encode(), 0)).fields
        assert (at["timestamp"] == "-1") == (end == 0), f"bounds: {topic}/{queue}: {at}"

    async def _new_group(self, *, begins: bool) -> None:
        """It begins at 0 where the first message is there still, if it does not mind."""
        values: dict[str, Any] = {"consumerGroup": "new", "topic": TOPIC, "queueId": 0}
        for zero, is_told in ((None, begins), (True, begins), (False, False)):
            header = QueryConsumerOffsetRequest(setZeroIfNotFound=zero, **values)
            code = Answer.SUCCESS if is_told else Answer.QUERY_NOT_FOUND
            found = await self._peer.ask(Code.QUERY_CONSUMER_OFFSET, header.encode(), code)
            assert found.fields.get("offset", "0") == "0", f"position: {found.fields}"

    async def _batches(self) -> None:
        """In a batch queue, whole batches."""
        end = 0
        for count in (self._random.randint(1, 4), 3):
            items = [BatchItem(b"inner", 0, b"UNIQ_KEY\x01i%d\x02" % n) for n in range(count)]
            asked = self._peer.send_request(
                body=encode_batch(items), properties={"UNIQ_KEY": "B"}, b=BATCHES, m=True, d=1
            )
            fields = asked.fields
            await self._peer.ask(Code.SEND_BATCH_MESSAGE, fields, 0, asked.body)
            end += count
        await self._bounds(BATCHES, 0, 0, end)

    async def _query(self, want: int, key: str, **changes: Any) -> list[StoredMessage]:
        values: dict[str, Any] = {
            "topic": TOPIC, "key": key, "maxNum": 100, "beginTimestamp": 0,
            "endTimestamp": 1 << 50, **changes,
        }  # fmt: skip
        fields = QueryMessageRequest(**values).encode()
        code = Answer.SUCCESS if want else Answer.QUERY_NOT_FOUND
        answer = await self._peer.ask(Code.QUERY_MESSAGE, fields, code)
        found = decode_messages(answer.body)
        offsets = {one.physical_offset for one in found}
        assert len(offsets) == len(found) == want, f"query: {len(found)} for {want}: {values}"
        last = int(answer.fields["indexLastUpdatePhyoffset"])
        assert last >= max(offsets, default=0), f"query: the index ends at {last}"
        return found

    async def _keys(self) -> None:
        few = self._random.randint(1, 20)
        for key, unique, most, want in (
            ("often", False, 100, QUERY_MAX), ("often", False, QUERY_MAX, QUERY_MAX),
            ("often", False, QUERY_MAX + 1, QUERY_MAX), ("often", False, few, few),
            ("always", True, 100, UNIQUE_MAX), ("always", True, UNIQUE_MAX - 1, UNIQUE_MAX - 1),
            ("often", False, 0, 0), ("often", False, -1, 0), ("never", False, 9, 0),
        ):  # fmt: skip
            await self._query(want, key, maxNum=most, uniqueKeyQuery=unique)
        first_ms = self._sent[0].store_timestamp
        # An index knows seconds only.
        for begin, end, want in (
            (0, first_ms - 1001, 0), (first_ms - 1000, 1 << 50, QUERY_MAX),
            (first_ms + 1_000_000, 1 << 50, 0),
        ):  # fmt: skip
            await self._query(want, "often", beginTimestamp=begin, endTimestamp=end)
        await self._query(0, "often", topic=BATCHES)

    async def _ids(self) -> None:
        last = self._sent[-1]
        one = self._random.choice(self._sent)
        for at, is_there in (
            (one.physical_offset, True), (one.physical_offset + 1, False), (1 << 40, False),
            (last.physical_offset + last.size, True), (-1, False),
        ):  # fmt: skip
            fields = ViewMessageRequest(offset=at).encode()
            code = Answer.SUCCESS if is_there else Answer.SYSTEM_ERROR
            answer = await self._peer.ask(Code.VIEW_MESSAGE_BY_ID, fields, code)
            if is_there:
                (found,) = decode_messages(answer.body)
                assert found.physical_offset == at, f"by id: {found.physical_offset} for {at}"

    async def _just_sent(self) -> None:
        """What was taken is there by its id, though it is in no queue yet."""
        table = KvTable.decode((await self._peer.ask(Code.GET_BROKER_RUNTIME_INFO, {}, 0)).body)
        fields = ViewMessageRequest(offset=int(table.table["commitLogMaxOffset"])).encode()
        both = [
            self._peer.send_request(body=b"just now", b="other"),
            request(Code.VIEW_MESSAGE_BY_ID, fields),
        ]
        for opaque, command in enumerate(both):
            command.opaque = opaque
        stream, reader = await self._world.network.connect(HOST, PORT), FrameReader()
        await stream.send_all(b"".join(map(encode, both)))
        codes: dict[int, int] = {}
        while len(codes) < len(both):
            answers = reader.feed(bytes(await stream.receive_some(65_536)))
            codes |= {one.opaque: one.code for one in answers}
        assert codes == {0: 0, 1: 0}, f"by id: {codes} of what was just sent"
        await trio.aclose_forcefully(stream)

    async def _resets(self) -> None:
        """A group is sent to the first message that is not older, or to the end."""
        times = [one.store_timestamp for one in self._sent]
        for at_ms in (-1, times[0] - 5, *self._random.sample(times, 3)):
            first = next((number for number, one in enumerate(times) if one >= at_ms), 0)
            want = SMALL if at_ms < 0 else first
            header = ResetOffsetRequest(topic=TOPIC, group="g", timestamp=at_ms, isForce=True)
            code = Code.INVOKE_BROKER_TO_RESET_OFFSET
            answer = await self._peer.ask(code, header.encode(), 0)
            table = QueueOffsets.decode(answer.body).offset_table
            told = {one.queue_id: offset for one, offset in table.items()}
            assert told == {0: want, 1: 0}, f"reset: {told} for {want} at {at_ms}"
            await self._peer.stands(want)

    async def _times(self) -> None:
        """The first message that is not older, or the last that is not newer."""
        times = [one.store_timestamp for one in self._sent]
        # Of the time of the last one that was pulled there may be more.
        known = [at for at in times if at < times[-1]]
        for at_ms in (times[0] - 5, *self._random.sample(known, min(len(known), 5))):
            first = next(number for number, one in enumerate(times) if one >= at_ms)
            last = max([0, *(number for number, one in enumerate(times) if one <= at_ms)])
            for boundary, want in ((None, first), ("lower", first), ("upper", last)):
                header = SearchOffsetRequest(
                    topic=TOPIC, queueId=0, timestamp=at_ms, boundaryType=boundary
                )
                answer = await self._peer.ask(Code.SEARCH_OFFSET_BY_TIMESTAMP, header.encode(), 0)
                told = answer.fields["offset"]
                assert told == str(want), f"time: {at_ms} {boundary}: {told} for {want}"

    async def _large(self) -> None:
        """As many as an answer may have bytes."""
        for _ in range(LARGE):
            await self._peer.send(body=bytes(LARGE_BODY), properties={"KEYS": "large"}, e=1)
        found = await self._peer.pull(Answer.SUCCESS, queueId=1, maxMsgNums=1)
        (one,) = decode_messages(found.body)
        await self._query(ANSWER_MAX // one.size, "large")
