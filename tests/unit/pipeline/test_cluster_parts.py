"""Part of a live cluster is read, and a broker of it is away for a while."""

from collections.abc import Iterable, Sequence
from typing import cast

import pytest
import trio

from rocketbed.pipeline.options import Options
from rocketbed.pipeline.streams.offsets import StreamError
from rocketbed.pipeline.wire.cluster import Cluster
from rocketbed.pipeline.wire.log import WireLog
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
