"""Writes one invoice for each order, whatever happens to the cluster or to this program.

An order is done when its invoice is acknowledged, and only then its position is committed: after a
crash some orders come again, and get the same invoice again. Readers of invoices go by its number.
"""

import json

import trio

from rocketbed import Consumer, Message, Producer, Received, Sent
from rocketbed.client.errors import ClientError
from rocketbed.remoting.errors import RemotingError
from rocketbed.world.api import World

PAUSE_S = 0.2


class Billing:
    """The service. `run` it until you cancel it."""

    def __init__(self, nameservers: str, *, world: World | None = None) -> None:
        self.nameservers = nameservers
        self.world = world
        self.billed = 0

    async def run(self) -> None:
        """Begin again wherever the group stands, as often as a broker goes away."""
        while True:
            try:
                await self._work()
            except* (ClientError, RemotingError):
                await trio.sleep(PAUSE_S)

    async def _work(self) -> None:
        async with (
            Producer(self.world, nameservers=self.nameservers, group="billing") as producer,
            Consumer(self.world, nameservers=self.nameservers, group="billing") as consumer,
        ):
            await consumer.subscribe("orders", start="first")
            while True:
                for message in await consumer.poll(timeout_s=1.0):
                    await self._bill(producer, message)
                await consumer.commit()

    async def _bill(self, producer: Producer, order: Received) -> None:
        number = json.loads(order.body)["order"]
        invoice = Message("invoices", json.dumps({"invoice": number}).encode(), keys=[str(number)])
        while True:
            outcome = await producer.send(invoice)
            if isinstance(outcome, Sent) and outcome.is_safe:
                self.billed += 1
                return
            await trio.sleep(PAUSE_S)
