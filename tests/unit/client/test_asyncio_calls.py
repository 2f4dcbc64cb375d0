"""Coroutines of `rocketbed.aio`: each lets other tasks run, and raises when it is cancelled.

They are listed by introspection, so that a new one has to be added here.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketbed.aio import Admin, Consumer, Message, Producer
from rocketbed.wire.bodies import MessageQueue, SubscriptionGroupConfig

NOWHERE = "127.0.0.1:1"
QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
MESSAGE = Message("T", b"x")
PLAIN = {
    "Consumer": {"position", "positions", "seek", "pause", "resume", "stop_listening", "finish"}
}
"""Methods that are no coroutines."""


async def ignore(message: object) -> None:
    await asyncio.sleep(0)


CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "Producer.send": lambda c: c.send(MESSAGE),
    "Producer.send_batch": lambda c: c.send_batch([MESSAGE]),
    "Producer.send_oneway": lambda c: c.send_oneway(MESSAGE),
    "Producer.queues": lambda c: c.queues("T"),
    "Consumer.queues": lambda c: c.queues("T"),
    "Consumer.pull": lambda c: c.pull(QUEUE, 0),
    "Consumer.subscribe": lambda c: c.subscribe("T"),
    "Consumer.assign": lambda c: c.assign([QUEUE]),
    "Consumer.unsubscribe": lambda c: c.unsubscribe("T"),
    "Consumer.poll": lambda c: c.poll(),
    "Consumer.__anext__": lambda c: anext(c),
    "Consumer.listen": lambda c: c.listen(ignore),
    "Consumer.seek_to_time": lambda c: c.seek_to_time(QUEUE, 0),
    "Consumer.lag": lambda c: c.lag(),
    "Consumer.commit": lambda c: c.commit(),
    "Consumer.committed": lambda c: c.committed(QUEUE),
    "Admin.create_topic": lambda c: c.create_topic("T"),
    "Admin.delete_topic": lambda c: c.delete_topic("T"),
    "Admin.topics": lambda c: c.topics(),
    "Admin.route": lambda c: c.route("T"),
    "Admin.topic_config": lambda c: c.topic_config("T", "a"),
    "Admin.topic_configs": lambda c: c.topic_configs(NOWHERE),
    "Admin.cluster": lambda c: c.cluster(),
    "Admin.masters": lambda c: c.masters(),
    "Admin.runtime_info": lambda c: c.runtime_info(NOWHERE),
    "Admin.failover_groups": lambda c: c.failover_groups(),
    "Admin.hand_over": lambda c: c.hand_over(NOWHERE, "a", to=-1, epoch=1),
    "Admin.force_leader": lambda c: c.force_leader("a", 1),
    "Admin.broker_config": lambda c: c.broker_config(NOWHERE),
    "Admin.change_broker_config": lambda c: c.change_broker_config(NOWHERE, {}),
    "Admin.wipe_write_permission": lambda c: c.wipe_write_permission("a"),
    "Admin.add_write_permission": lambda c: c.add_write_permission("a"),
    "Admin.groups": lambda c: c.groups(),
    "Admin.create_group": lambda c: c.create_group(SubscriptionGroupConfig(group_name="g")),
    "Admin.delete_group": lambda c: c.delete_group("g"),
    "Admin.group_members": lambda c: c.group_members("g"),
    "Admin.message": lambda c: c.message("ID"),
    "Admin.messages_by_unique_key": lambda c: c.messages_by_unique_key("T", "ID"),
    "Admin.messages_by_key": lambda c: c.messages_by_key("T", "k"),
    "QueueOffsets.committed": lambda c: c.offsets.committed("g", QUEUE),
    "QueueOffsets.commit": lambda c: c.offsets.commit("g", QUEUE, 0),
    "QueueOffsets.min_offset": lambda c: c.offsets.min_offset(QUEUE),
    "QueueOffsets.max_offset": lambda c: c.offsets.max_offset(QUEUE),
    "QueueOffsets.offset_at": lambda c: c.offsets.offset_at(QUEUE, 0),
}


def client_of(name: str) -> Producer | Consumer | Admin:
    match name.partition(".")[0]:
        case "Producer":
            return Producer(nameservers=NOWHERE)
        case "Consumer":
            return Consumer(nameservers=NOWHERE, group="g")
        case _:
            return Admin(nameservers=NOWHERE)


def test_every_coroutine_is_called_here() -> None:
    kinds = (Producer, Consumer, Admin, type(Admin(nameservers=NOWHERE).offsets))
    names = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in vars(kind).items()
        if callable(member)
        and (not name.startswith("_") or name == "__anext__")
        and name not in PLAIN.get(kind.__name__, ())
    }
    assert sorted(names ^ CALLS.keys()) == []


@pytest.mark.parametrize("name", sorted(CALLS))
def test_call_suspends_and_can_be_cancelled(name: str) -> None:
    async def main() -> None:
        async with client_of(name) as client:
            task = asyncio.ensure_future(CALLS[name](client))
            await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
