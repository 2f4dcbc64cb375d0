"""Every order has its invoice, whatever breaks."""

import json

import pytest
import trio
from orders.billing import Billing

from rocketbed import Message, Sent

pytestmark = pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync", seeds=10)
ORDERS = 60


@pytest.fixture
async def topics(cluster):
    await cluster.create_topic("orders")
    await cluster.create_topic("invoices")


async def place_orders(cluster, numbers):
    async with cluster.real_producer(group="shop") as shop:
        for number in numbers:
            order = Message("orders", json.dumps({"order": number}).encode())
            while not isinstance(await shop.send(order), Sent):
                await trio.sleep(0.1)


async def invoices(cluster, wanted):
    """Numbers of all invoices, once there are as many as wanted."""
    reader = await cluster.consumer("invoices", group="auditor")
    with trio.fail_after(60):
        while True:
            numbers = {json.loads(body)["invoice"] for body in await reader.read_all()}
            if len(numbers) >= wanted:
                return numbers
            await trio.sleep(0.2)


async def test_every_order_has_its_invoice(cluster, topics):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Billing(cluster.nameserver_address, world=cluster.world).run)
        await place_orders(cluster, range(ORDERS))
        assert await invoices(cluster, ORDERS) == set(range(ORDERS))
        nursery.cancel_scope.cancel()


async def test_also_when_the_master_dies(cluster, chaos, topics):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Billing(cluster.nameserver_address, world=cluster.world).run)
        await place_orders(cluster, range(ORDERS // 2))
        async with chaos.during(chaos.kill("leader")):
            await place_orders(cluster, range(ORDERS // 2, ORDERS))
        await cluster.settled()
        assert await invoices(cluster, ORDERS) == set(range(ORDERS))
        nursery.cancel_scope.cancel()


async def test_also_when_the_service_itself_dies(cluster, chaos, topics):
    for _ in range(3):
        with trio.move_on_after(0.3):
            await Billing(cluster.nameserver_address, world=cluster.world).run()
        await place_orders(cluster, range(ORDERS))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Billing(cluster.nameserver_address, world=cluster.world).run)
        assert await invoices(cluster, ORDERS) == set(range(ORDERS))
        nursery.cancel_scope.cancel()
