"""Load for a cluster that has none: messages at a rate, counted by outcome, with latencies."""

from collections import Counter, deque
from typing import Final

import trio

from rocketbed.chaos.run.load import LATENCIES_MAX
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Refused, Sent
from rocketbed.client.producer import Producer
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import World

TOPIC: Final = "watch"
BODY: Final = b"x" * 512
IN_FLIGHT: Final = 64
TIMEOUT_S: Final = 3.0


class Sender:
    def __init__(self, world: World, nameservers: str, rate: float) -> None:
        """`rate` is messages a second; a message is skipped while 64 others are pending."""
        self.counts: Counter[str] = Counter()
        self.latencies_ns: deque[int] = deque(maxlen=LATENCIES_MAX)
        self._world = world
        self._nameservers = nameservers
        self._rate = rate

    async def run(self) -> None:
        limit = trio.CapacityLimiter(IN_FLIGHT)
        async with (
            Producer(
                self._world,
                nameservers=self._nameservers,
                group="watch",
                timeout_s=TIMEOUT_S,
                retries=0,
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            next_send = trio.current_time()
            while True:
                next_send = max(next_send + 1 / self._rate, trio.current_time() - 1.0)
                await trio.sleep_until(next_send)
                if limit.available_tokens >= 1:
                    nursery.start_soon(self._send, producer, limit)

    async def _send(self, producer: Producer, limit: trio.CapacityLimiter) -> None:
        async with limit:
            start = trio.current_time()
            try:
                outcome = await producer.send(Message(TOPIC, BODY))
            except (ClientError, RemotingError, ProtocolError):
                self.counts["fail"] += 1
                return
            if isinstance(outcome, Sent) and outcome.is_safe:
                self.counts["ok"] += 1
                self.latencies_ns.append(round((trio.current_time() - start) * 1e9))
            elif isinstance(outcome, Sent):
                self.counts["weak"] += 1
            else:
                self.counts["fail" if isinstance(outcome, Refused) else "info"] += 1
