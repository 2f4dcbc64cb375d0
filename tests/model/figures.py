"""One node whose clients send, read and commit as drawn, second by second: every figure that it
shows of itself, of a topic and of a group, beside what was done until then."""

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
"""Seconds, and how many messages are sent in each at most."""
SAMPLE_S: Final = 10
SAMPLES: Final = 7
"""docs: rates are those of the last minute, by a sample each 10 s."""
SAVED_S: Final = 5
"""flushConsumerOffsetInterval."""
LOOK_EACH: Final = 7
"""Seconds between two looks."""
TOPIC, GROUP = "T", "g"


def run_figures(seed: int) -> str:
    return run_alone(_serve, seed, seed=f"figures/{seed}").digest


async def _serve(world: World, seed: int) -> None:
    config, _ = make_config(settings_from_options(list(SETTINGS)))
    async with trio.open_nursery() as nursery:
        boot_ms = world.clock.wall_ms()
        began = trio.current_time()
        await nursery.start(partial(run_node, world, config))
        figures = Figures(await Peer.dialled(world, nursery), Random(f"figures/{seed}"))
        figures.began, figures.boot_ms = began, boot_ms
        await figures.run()
        nursery.cancel_scope.cancel()


class Figures:
    """A client, and what it has done."""

    def __init__(self, peer: Peer, random: Random) -> None:
        self._peer, self._random = peer, random
        self.began = 0.0
        self.boot_ms = 0
        self._sent: list[StoredMessage] = []
        self._sent_s: list[int] = []
        """In which second."""
        self._stands: dict[int, int] = {}
        self._stood: list[dict[int, int]] = []
        """Where the group stood at the end of each second."""
        self._pulled: dict[int, int] = {}
        self._served = self._missed = self._failed = self._bytes = 0

    async def run(self) -> None:
        await self._peer.create(readQueueNums=QUEUES, writeQueueNums=QUEUES)
        await self._peer.put_group(group_name=GROUP)
        await self._look(0)
        second = count()
        for seconds, most in PHASES:
            for _ in range(seconds):
                now = next(second)
                # Samples are taken at whole seconds, since the node began.
                await trio.sleep_until(self.began + now + 0.5)
                for _ in range(self._random.randint(0, most)):
                    await self._send(now)
                if most:
                    await self._read()
                self._stood.append(dict(self._stands))
                if now % LOOK_EACH == 0:
                    await self._look(now)
        await self._saves()

    def _of(self, queue: int) -> list[StoredMessage]:
        return [one for one in self._sent if one.queue_id == queue]

    async def _send(self, now: int) -> None:
        if self._random.random() < 0.1:
            await self._peer.send(Answer.MESSAGE_ILLEGAL, body=b"")
        queue = self._random.randrange(QUEUES)
        offset = len(self._of(queue))
        await self._peer.send(body=self._random.randbytes(self._random.randint(1, 500)), e=queue)
        await trio.sleep(0.02)  # till it is in its queue
        found = await self._peer.pull(Answer.SUCCESS, queueId=queue, queueOffset=offset)
        self._served += 1
        self._pulled[queue] = offset
        self._sent += decode_messages(found.body)
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
        stands = self._stands.get(queue, 0)
        at = self._random.randint(stands, max(stands, len(self._of(queue))))
        await self._peer.commit(Answer.SUCCESS, at, queueId=queue)
        self._stands[queue] = at

    async def _saves(self) -> None:
        """Positions are saved once in a while, not as often as they change."""
        body = (await self._peer.ask(Code.GET_ALL_CONSUMER_OFFSET, {}, 0)).body
        saves = ConsumerOffsetTable.decode(body).data_version.counter
        busy_s = sum(seconds for seconds, most in PHASES if most)
        most = busy_s // SAVED_S + 2 * QUEUES
        assert busy_s // SAVED_S // 2 <= saves <= most, f"saves: {saves} in {busy_s} s"

    # --- what is shown

    async def _look(self, now: int) -> None:
        await self._node(now)
        await self._topic(now)
        await self._group(now)

    async def _node(self, now: int) -> None:
        table = KvTable.decode((await self._peer.ask(Code.GET_BROKER_RUNTIME_INFO, {}, 0)).body)
        told: Mapping[str, str] = table.table
        first = self._sent[0] if self._sent else None
        end = max((one.physical_offset + one.size for one in self._sent), default=0)
        sizes = sum(one.size for one in self._sent)
        mean = sizes / len(self._sent) if self._sent else 0.0
        puts = str(len(self._sent))
        want = {
            "putMessageTimesTotal": puts, "msgPutTotalTodayNow": puts,
            "msgGetTotalTodayNow": str(self._served), "putMessageSizeTotal": str(sizes),
            "putMessageAverageSize": str(mean), "putMessageFailedTimes": "0",
            "earliestMessageTimeStamp": str(first.store_timestamp if first else 0),
            "commitLogMinOffset": "0", "commitLogMaxOffset": str(end),
            "dispatchBehindBytes": "0", "dispatchMaxBuffer": "0", "pullRequestsHeld": "0",
            "trouble": "", "mendedUnits": "0", "unqueuedRecords": "0", "unqueuedWhere": "",
            "acceptedCuts": "", "keptCutBytes": "0", "indexDamage": "", "damagedRanges": "",
            "damageCount": "0", "scrubbedTo": "0", "lastDurableOffsetAtBoot": "-1",
            "brokerActive": "true", "timerReadBehind": "0", "queuesUnmade": "",
        }  # fmt: skip
        got = {key: told.get(key) for key in want}
        wrong = {key: (got[key], want[key]) for key in want if got[key] != want[key]}
        assert not wrong, f"figures: after {now} s: {wrong}"
        late_ms = int(told["bootTimestamp"]) - self.boot_ms
        assert 0 <= late_ms < 300, f"figures: began {late_ms} ms late"
        elapsed = trio.current_time() - self.began
        for key, number in (
            ("putTps", len(self._sent)), ("getFoundTps", self._served),
            ("getTransferredTps", self._served), ("getMissTps", self._missed),
        ):  # fmt: skip
            rate = number / max(elapsed, 0.001)
            figures = list(map(float, told[key].split()))
            right = len(figures) == 3 and all(abs(one - rate) < 0.06 + rate / 20 for one in figures)
            assert right, f"figures: {key} {figures} for {rate} after {elapsed} s"
        seconds = int(told["runtime"].split()[1])
        assert seconds == int(elapsed), f"figures: {told['runtime']} after {elapsed} s"

    def _rate(self, totals: list[int]) -> float:
        """Growth a second in the last minute, of totals by second; 0 where one sample knows it."""
        seconds = range(SAMPLE_S, int(trio.current_time() - self.began) + 1, SAMPLE_S)
        known = [(at, totals[at - 1]) for at in seconds if totals[at - 1]][-SAMPLES:]
        if len(known) < 2:
            return 0.0
        (begin, low), (end, high) = known[0], known[-1]
        return max(high - low, 0) / (end - begin)

    def _told(self, told: float, want: float, what: str) -> None:
        assert abs(told - want) < 0.001 + want / 200, f"figures: {what}: {told} for {want}"

    async def _topic(self, now: int) -> None:
        body = (await self._peer.ask(Code.GET_TOPIC_STATS_INFO, _topic_fields(), 0)).body
        table = TopicStatsTable.decode(body)
        for one, row in table.offset_table.items():
            sent = self._of(one.queue_id)
            last_ms = sent[-1].store_timestamp if sent else 0
            told = (row.min_offset, row.max_offset, row.last_update_timestamp)
            assert told == (0, len(sent), last_ms), f"figures: {one}: {told}, {last_ms}"
        assert len(table.offset_table) == QUEUES, f"figures: {table.offset_table}"
        totals = [sum(at <= second for at in self._sent_s) for second in range(now + 1)]
        self._told(table.topic_put_tps, self._rate(totals), f"sends after {now} s")

    async def _group(self, now: int) -> None:
        fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC}
        body = (await self._peer.ask(Code.GET_CONSUME_STATS, fields, 0)).body
        stats = ConsumeStats.decode(body)
        for one, row in stats.offset_table.items():
            sent = self._of(one.queue_id)
            stands = self._stands.get(one.queue_id, 0)
            last_ms = sent[stands - 1].store_timestamp if stands else 0
            told = (row.broker_offset, row.consumer_offset, row.pull_offset, row.last_timestamp)
            pulled = max(stands, self._pulled.get(one.queue_id, 0))
            assert told == (len(sent), stands, pulled, last_ms), f"figures: {one}: {told}"
        totals = [sum(stood.values()) for stood in self._stood]
        self._told(stats.consume_tps, self._rate(totals), f"{GROUP} after {now} s")


def _topic_fields() -> dict[str, str]:
    return TopicRequest(topic=TOPIC).encode()
