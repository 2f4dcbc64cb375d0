"""Steps that tests of whole groups with failover have in common."""

import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.remoting.client import dial
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command
from rocketbed.world.api import World
from tests.support.sim.failover_nodes import GROUP, NAMESERVER, PORT, FailoverNodes
from tests.support.sim.links import cut, heal

QUEUE = MessageQueue(topic="T", broker_name=GROUP, queue_id=0)


def ready(group: FailoverNodes) -> str:
    """Who leads; the followers copy no tables, so that only the log tells them of changes."""
    leader = group.settle()
    group.wait(group.is_routed)
    group.copy_no_tables()
    return leader


def end(group: FailoverNodes, leader: str, how: str) -> str:
    """Have another one lead, by "kill", "stop", "pause", "cut" or "hand over"; its name."""
    others = [name for name in (*group.names, *group.nameservers) if name != leader]
    if how == "kill":
        group.simulation.kill(leader)
    elif how == "stop":
        group.simulation.stop(leader)
    elif how == "pause":
        group.simulation.pause(leader)
    elif how == "cut":
        for other in others:
            cut(group.simulation.network, leader, other)
    else:
        group.hand_over(leader)
    group.wait(lambda: group.leader() not in ("", leader))
    if how == "pause":
        group.simulation.resume(leader)
    elif how == "cut":
        heal(group.simulation.network)
    return group.leader()


async def fill(world: World, topic: str, bodies: str, count: int) -> list[tuple[bytes, int]]:
    """Send so many to the first queue; body and offset of those that were acknowledged."""
    queue = MessageQueue(topic=topic, broker_name=GROUP, queue_id=0)
    sent = []
    async with Producer(world, nameservers=NAMESERVER, group="pg") as producer:
        for number in range(count):
            body = b"%s %d" % (bodies.encode(), number)
            outcome = await producer.send(Message(topic, body), queue=queue)
            if isinstance(outcome, Sent) and outcome.is_safe:
                sent.append((body, outcome.queue_offset))
    return sent


async def read(world: World) -> list[tuple[bytes, int]]:
    """Body and offset of all that a new group gets of T."""
    async with Consumer(world, nameservers=NAMESERVER, group="final") as reader:
        await reader.subscribe("T", start="first")
        found = []
        while messages := await reader.poll(timeout_s=2):
            found += [(message.body, message.queue_offset) for message in messages]
    return found


async def ask(world: World, group: FailoverNodes, name: str, command: Command) -> Command:
    """A node's answer, which may take long."""
    connection = await dial(world, (group.simulation.host(name).address, PORT), timeout_s=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            return await connection.request(command, timeout_s=60)
        finally:
            nursery.cancel_scope.cancel()
