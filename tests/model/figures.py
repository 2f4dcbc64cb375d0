"""A node's figures (totals, rates, positions, times) beside the requests of its clients."""

from collections.abc import Mapping
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

import trio

from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.wire.bodies import ConsumerOffsetTable, KvTable
from rocketbed.wire.bodies_admin import ConsumeStats, TopicStatsTable
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.wire.message import StoredMessage, decode_messages
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.broker import SETTINGS, Peer

Code, Answer = RequestCode, ResponseCode
QUEUES: Final = 3
PHASES: Final = ((45, 3), (20, 0), (30, 1), (75, 0))
"""Seconds, and most messages in each second."""
SAMPLE_S: Final = 10
SAMPLES: Final = 7
"""Samples of the last minute, from which rates are computed."""
SAVED_S: Final = 5
"""flushConsumerOffsetInterval."""
CHECK_EACH: Final = 7
"""Seconds between two comparisons."""
TOPIC, GROUP = "T", "g"
CONSTANT: Final = {
    "putMessageFailedTimes": "0", "commitLogMinOffset": "0", "dispatchBehindBytes": "0",
    "dispatchMaxBuffer": "0", "pullRequestsHeld": "0", "trouble": "", "mendedUnits": "0",
    "unqueuedRecords": "0", "unqueuedWhere": "", "acceptedCuts": "", "keptCutBytes": "0",
    "indexDamage": "", "damagedRanges": "", "damageCount": "0", "scrubbedTo": "0",
    "lastDurableOffsetAtBoot": "-1", "brokerActive": "true", "timerReadBehind": "0",
    "queuesUnmade": "",
}  # fmt: skip


def run_figures(seed: int) -> str:
    return run_alone(_serve, seed, seed=f"figures/{seed}").digest


async def _serve(world: World, seed: int) -> None:
    config, _ = make_config(settings_from_options(list(SETTINGS)))
    async with trio.open_nursery() as nursery:
        boot_ms, begin = world.clock.wall_ms(), trio.current_time()
        await nursery.start(partial(run_node, world, config))
        peer = await Peer.dialled(world, nursery)
        await Client(peer, Random(f"figures/{seed}"), boot_ms, begin).run()
        nursery.cancel_scope.cancel()


class Client:
    """A client, and a record of its requests."""

    def __init__(self, peer: Peer, random: Random, boot_ms: int, begin: float) -> None:
        self._peer, self._random, self._boot_ms, self._begin = peer, random, boot_ms, begin
        self._sent: list[StoredMessage] = []
        self._sent_s: list[int] = []
        """Second of each send."""
        self._positions: dict[int, int] = {}
        self._history: list[dict[int, int]] = []
        """Positions at the end of each second."""
        self._pulled: dict[int, int] = {}
        self._served = self._missed = 0

    async def run(self) -> None:
        await self._peer.create(readQueueNums=QUEUES, writeQueueNums=QUEUES)
        await self._peer.put_group(group_name=GROUP)
        await self._check(0)
        second = count()
        for seconds, most in PHASES:
            for _ in range(seconds):
                now = next(second)
                # The node takes samples at whole seconds since its start.
                await trio.sleep_until(self._begin + now + 0.5)
                for _ in range(self._random.randint(0, most)):
                    await self._send(now)
                if most:
                    await self._read()
                self._history.append(dict(self._positions))
                if now % CHECK_EACH == 0:
                    await self._check(now)
        await self._check_saves()

    def _of(self, queue: int) -> list[StoredMessage]:
        return [message for message in self._sent if message.queue_id == queue]

    async def _send(self, now: int) -> None:
        if self._random.random() < 0.1:
            await self._peer.send(Answer.MESSAGE_ILLEGAL, body=b"")
        queue = self._random.randrange(QUEUES)
        offset = len(self._of(queue))
        await self._peer.send(body=self._random.randbytes(self._random.randint(1, 500)), e=queue)
        await trio.sleep(0.02)  # until it is in its queue
        answer = await self._peer.pull(Answer.SUCCESS, queueId=queue, queueOffset=offset)
        self._served += 1
        self._pulled[queue] = offset
        self._sent += decode_messages(answer.body)
        self._sent_s.append(now)

    async def _read(self) -> None:
        queue = self._random.randrange(QUEUES)
        end = len(self._of(queue))
        offset = self._random.randint(0, end)
        code = Answer.SUCCESS if offset < end else Answer.PULL_NOT_FOUND
        await self._peer.pull(code, queueId=queue, queueOffset=offset)
        self._served += min(end - offset, 32)
        self._missed += offset == end
        self._pulled[queue] = offset
        queue = self._random.randrange(QUEUES)
        position = self._positions.get(queue, 0)
        offset = self._random.randint(position, max(position, len(self._of(queue))))
        await self._peer.commit(Answer.SUCCESS, offset, queueId=queue)
        self._positions[queue] = offset

    async def _check_saves(self) -> None:
        """Expect fewer saves of positions than changes."""
        body = (await self._peer.ask(Code.GET_ALL_CONSUMER_OFFSET, {}, 0)).body
        saves = ConsumerOffsetTable.decode(body).data_version.counter
        intervals = sum(seconds for seconds, most in PHASES if most) // SAVED_S
        assert intervals // 2 <= saves <= intervals + 2 * QUEUES, f"saves: {saves}"

    async def _check(self, now: int) -> None:
        await self._check_node(now)
        await self._check_topic(now)
        await self._check_group(now)

    async def _check_node(self, now: int) -> None:
        body = (await self._peer.ask(Code.GET_BROKER_RUNTIME_INFO, {}, 0)).body
        table: Mapping[str, str] = KvTable.decode(body).table
        sizes = [message.size for message in self._sent]
        end = max((one.physical_offset + one.size for one in self._sent), default=0)
        first_ms = self._sent[0].store_timestamp if self._sent else 0
        expected = {
            **CONSTANT, "putMessageTimesTotal": len(sizes), "msgPutTotalTodayNow": len(sizes),
            "msgGetTotalTodayNow": self._served, "putMessageSizeTotal": sum(sizes),
            "putMessageAverageSize": sum(sizes) / len(sizes) if sizes else 0.0,
            "earliestMessageTimeStamp": first_ms, "commitLogMaxOffset": end,
        }  # fmt: skip
        wrong = {
            key: (table.get(key), value)
            for key, value in expected.items()
            if table.get(key) != str(value)
        }
        assert not wrong, f"figures: after {now} s: {wrong}"
        late_ms = int(table["bootTimestamp"]) - self._boot_ms
        assert 0 <= late_ms < 300, f"figures: started {late_ms} ms late"
        elapsed_s = trio.current_time() - self._begin
        for key, number in (
            ("putTps", len(sizes)), ("getFoundTps", self._served),
            ("getTransferredTps", self._served), ("getMissTps", self._missed),
        ):  # fmt: skip
            rate = number / max(elapsed_s, 0.001)
            rates = list(map(float, table[key].split()))
            is_right = len(rates) == 3 and all(abs(one - rate) < 0.06 + rate / 20 for one in rates)
            assert is_right, f"figures: {key} {rates}, expected {rate} after {elapsed_s} s"
        seconds = int(table["runtime"].split()[1])
        assert seconds == int(elapsed_s), f"figures: {table['runtime']} after {elapsed_s} s"

    def _check_rate(self, actual: float, totals: list[int], name: str) -> None:
        """Compare with the growth a second in the last minute; 0 with a single sample."""
        seconds = range(SAMPLE_S, int(trio.current_time() - self._begin) + 1, SAMPLE_S)
        samples = [(at, totals[at - 1]) for at in seconds if totals[at - 1]][-SAMPLES:]
        rate = 0.0
        if len(samples) > 1:
            (begin, low), (end, high) = samples[0], samples[-1]
            rate = max(high - low, 0) / (end - begin)
        assert abs(actual - rate) < 0.001 + rate / 200, f"figures: {name}: {actual}, not {rate}"

    async def _check_topic(self, now: int) -> None:
        fields = TopicRequest(topic=TOPIC).encode()
        body = (await self._peer.ask(Code.GET_TOPIC_STATS_INFO, fields, 0)).body
        table = TopicStatsTable.decode(body)
        assert len(table.offset_table) == QUEUES, f"figures: {table.offset_table}"
        for queue, row in table.offset_table.items():
            sent = self._of(queue.queue_id)
            last_ms = sent[-1].store_timestamp if sent else 0
            actual = (row.min_offset, row.max_offset, row.last_update_timestamp)
            assert actual == (0, len(sent), last_ms), f"figures: {queue}: {actual}"
        totals = [sum(at <= second for at in self._sent_s) for second in range(now + 1)]
        self._check_rate(table.topic_put_tps, totals, f"sends after {now} s")

    async def _check_group(self, now: int) -> None:
        fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC}
        body = (await self._peer.ask(Code.GET_CONSUME_STATS, fields, 0)).body
        stats = ConsumeStats.decode(body)
        for queue, row in stats.offset_table.items():
            sent = self._of(queue.queue_id)
            position = self._positions.get(queue.queue_id, 0)
            last_ms = sent[position - 1].store_timestamp if position else 0
            pulled = max(position, self._pulled.get(queue.queue_id, 0))
            actual = (row.broker_offset, row.consumer_offset, row.pull_offset, row.last_timestamp)
            expected = (len(sent), position, pulled, last_ms)
            assert actual == expected, f"figures: {queue}: {actual}, expected {expected}"
        totals = [sum(positions.values()) for positions in self._history]
        self._check_rate(stats.consume_tps, totals, f"{GROUP} after {now} s")
