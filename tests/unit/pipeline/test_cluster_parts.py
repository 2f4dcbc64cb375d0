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
    """As `WireLog`: one broker unregistered, which comes back while its registration is awaited."""

    def __init__(self, comes: tuple[str, ...]) -> None:
        self.there: Sequence[str] = ("a", "b")
        self.comes = comes
        self.route: Sequence[str] = self.there
        """As it was asked for last."""

    async def brokers(self, names: Iterable[str], clusters: Iterable[str]) -> frozenset[str]:
        self.there = tuple(sorted({*self.there, *self.comes}))
        return frozenset(names)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(topic=topic, broker_name=one, queue_id=0) for one in self.route)

    def distrust(self, topic: str) -> None:
        self.route = self.there

    async def bounds_of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        return dict.fromkeys(queues, QueueBounds(0, 1, 1))


def test_a_topic_waits_for_its_broker_that_is_away() -> None:
    """Elsewhere it is there: that alone does not say that this broker lacks it."""
    options = Options.parse({"endpoints": "h:1", "topics": "T", "brokers": "a"})

    async def look(log: Log) -> list[str]:
        cluster = Cluster(options)
        first = await cluster.look(cast("WireLog", log))
        log.there = log.route = ("b",)
        assert list(first.queues) == list((await cluster.look(cast("WireLog", log))).queues)
        return list(first.queues)

    assert trio.run(look, Log(("a",))) == ["a|T|0"]
    with pytest.raises(StreamError, match="topic T has no queue at a; it is at b"):
        trio.run(look, Log(()))


class Deleting(Log):
    """Topic `U` is deleted, and may be made again."""

    def __init__(self) -> None:
        super().__init__(())
        self.gone = "U"
        self.waited = 0

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        if topic == self.gone:
            self.waited += 1
            raise TopicGone("route of topic U: after 30 s still: no route")
        return await super().queues(topic)

    async def queues_now(self, topic: str) -> tuple[MessageQueue, ...]:
        return () if topic == self.gone else await super().queues(topic)


def test_a_topic_that_is_gone_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every batch of a loose stream waited for it twice, for all of retryTimeoutMs."""
    given = {"endpoints": "h:1", "topics": "T,U"}
    log = Deleting()

    async def look(options: Options) -> list[list[str]]:
        cluster = Cluster(options)
        found = [list((await cluster.look(cast("WireLog", log))).queues) for _ in range(3)]
        log.gone = ""
        found.append(list((await cluster.look(cast("WireLog", log))).queues))
        return found

    with pytest.raises(TopicGone):
        trio.run(look, Options.parse(given))
    loose = trio.run(look, Options.parse(given | {"failOnDataLoss": "false"}))
    there = ["a|T|0", "b|T|0"]
    assert loose == [there, there, there, [*there[:1], "a|U|0", *there[1:], "b|U|0"]]
    assert log.waited == 2
    assert caplog.text.count("wire.topic_gone") == 1
