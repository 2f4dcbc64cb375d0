"""Delayed messages of a topic that the promoted slave had not copied yet."""

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS
from tests.support.sim.promotion import Group


@pytest.mark.parametrize("was_deleted", [True, False], ids=["made-again", "new"])
@pytest.mark.parametrize("restarts", [True, False], ids=["restarted", "at-once"])
def test_a_delayed_message_makes_its_topic(was_deleted: bool, restarts: bool) -> None:
    async def before(world: World) -> None:
        async with (
            Admin(world, nameservers=NAMESERVERS) as admin,
            Producer(world, nameservers=NAMESERVERS) as sender,
        ):
            await admin.create_topic("Other")
            if was_deleted:
                assert isinstance(await sender.send(Message("T", b"old")), Sent)
                await admin.delete_topic("T")
            await trio.sleep(25)  # the slave copies the tables, and the deletion

    async def main(world: World) -> None:
        async with Producer(world, nameservers=NAMESERVERS, timeout_s=10) as sender:
            delayed = Message("T", b"later", delay_level=5)
            outcome = await sender.send(delayed)
            assert isinstance(outcome, Sent), outcome

    with Group(1, sync=True, sync_flush=True) as group:
        group.start("b1", "b2", metadata_sync_ms=20_000)
        group.simulation.run(5)
        group.run(before)
        group.run(main)
        group.run_until_equal("b2")
        group.end("b1")
        group.promote("b2")
        group.restart("b2")
        group.start("b1")
        group.simulation.run(5)
        if restarts:
            group.restart("b2")
        group.simulation.run(90)
        delays = group.nodes["b2"].broker.delays
        assert (delays.delivered, delays.dropped) == (1, 0)
