"""Part of a live cluster is read, and a broker of it is away for a while."""

from collections.abc import Iterable, Sequence
from typing import cast

import pytest
import trio

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import StreamError
from rocketbed.pipeline.wire.cluster import Cluster
from rocketbed.pipeline.wire.log import TopicGone, WireLog
from rocketbed.pipeline.wire.questions import QueueBounds
from rocketbed.wire.bodies import MessageQueue


class Log:
    """A log like `WireLog`: one broker is unregistered and registers again while it is awaited."""

    def __init__(self, comes: tuple[str, ...]) -> None:
        self.present: Sequence[str] = ("a", "b")
        self.comes = comes
        self.route: Sequence[str] = self.present
        """As it was asked for last."""

    async def brokers(self, names: Iterable[str], clusters: Iterable[str]) -> frozenset[str]:
        self.present = tuple(sorted({*self.present, *self.comes}))
        return frozenset(names)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(topic=topic, broker_name=one, queue_id=0) for one in self.route)

    def distrust(self, topic: str) -> None:
        self.route = self.present

    async def bounds_of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        return dict.fromkeys(queues, QueueBounds(0, 1, 1))


def test_topic_waits_for_its_unreachable_broker() -> None:
    """Elsewhere it is there: that alone does not say that this broker lacks it."""
    options = Options.parse({"endpoints": "h:1", "topics": "T", "brokers": "a"})

    async def look(log: Log) -> list[str]:
        cluster = Cluster(options)
        first = await cluster.look(cast("WireLog", log))
        log.present = log.route = ("b",)
        assert list(first.queues) == list((await cluster.look(cast("WireLog", log))).queues)
        return list(first.queues)

    assert trio.run(look, Log(("a",))) == ["a|T|0"]
    with pytest.raises(StreamError, match="topic T has no queue at a; it is at b"):
        trio.run(look, Log(()))


class Deleting(Log):
    """A cluster whose topic `U` is deleted, and may be recreated."""

    def __init__(self) -> None:
        super().__init__(())
        self.deleted = "U"
        self.waited = 0

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        if topic == self.deleted:
            self.waited += 1
            raise TopicGone("route of topic U: after 30 s still: no route")
        return await super().queues(topic)

    async def queues_now(self, topic: str) -> tuple[MessageQueue, ...]:
        return () if topic == self.deleted else await super().queues(topic)


def test_missing_topic_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every batch of a loose stream waited for it twice, for all of retryTimeoutMs."""
    texts = {"endpoints": "h:1", "topics": "T,U"}
    log = Deleting()

    async def look(options: Options) -> list[list[str]]:
        cluster = Cluster(options)
        names = [list((await cluster.look(cast("WireLog", log))).queues) for _ in range(3)]
        log.deleted = ""
        names.append(list((await cluster.look(cast("WireLog", log))).queues))
        return names

    with pytest.raises(TopicGone):
        trio.run(look, Options.parse(texts))
    loose = trio.run(look, Options.parse(texts | {"failOnDataLoss": "false"}))
    both_brokers = ["a|T|0", "b|T|0"]
    assert loose == [
        both_brokers,
        both_brokers,
        both_brokers,
        [*both_brokers[:1], "a|U|0", *both_brokers[1:], "b|U|0"],
    ]
    assert log.waited == 2
    assert caplog.text.count("wire.topic_gone") == 1
