"""A node and clients of two groups beside a model, over three lives.

Members join and leave, lock queues, commit, reset and clone positions, send, pull and wait; topics
and groups are deleted and recreated.
"""

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import run_node
from rocketbed.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    LockedQueues,
    LockQueues,
    MessageQueue,
    SubscriptionData,
)
from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.command import ResponseCode
from rocketbed.wire.headers import UnregisterClientRequest
from rocketbed.wire.headers_admin import (
    CloneOffsetRequest,
    DeleteGroupRequest,
    ResetOffsetRequest,
    TopicRequest,
)
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.broker import SETTINGS
from tests.model.groups_model import GROUPS, QUEUES, Code, Model, Place
from tests.model.groups_readers import Readers

STEPS: Final = 120
SAVED_S: Final = 12.0
"""Longer than positions wait until they are saved."""
LOCK_S: Final = 60.0


def run_groups(seed: int) -> str:
    """Run three lives of a node, which end by a stop or a kill."""
    digest, image, model = "", DiskImage(), Model()
    for life in range(3):
        run = run_alone(_serve, model, f"{seed}/{life}", image=image, seed=f"groups/{seed}/{life}")
        remarks = [line.fields for line in run.log if line.event == "topics.remark"]
        assert not remarks, f"topics: {remarks} at a start"
        digest += run.digest
        image = run.image
        model.restarted()
    return digest


async def _serve(world: World, model: Model, seed: str) -> None:
    random = Random(f"groups/{seed}")
    flush = f"flushDiskType={random.choice(('SYNC', 'ASYNC'))}_FLUSH"
    config, _ = make_config(settings_from_options([*SETTINGS, flush]))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_node, world, config)
        clients = Acts(world, nursery, random, model)
        await clients.run()
        if random.random() < 0.5:
            world.process.stop_requested.set()
            clients.close()
        else:
            nursery.cancel_scope.cancel()


class Acts(Readers):
    """The actions of the clients."""

    async def run(self) -> None:
        await self.prepare()
        await self.acts(STEPS)
        await trio.sleep(SAVED_S)

    async def prepare(self) -> None:
        operator = await self.peer("operator")
        for topic, count in QUEUES.items():
            await operator.create(topic=topic, readQueueNums=count, writeQueueNums=count)
        for group in GROUPS:
            await operator.put_group(group_name=group)
        await self.compare("start")

    async def acts(self, steps: int) -> None:
        """Run this many random actions; compare after each."""
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self.send: 10, self._join: 4, self._leave: 2, self._lock: 6, self._unlock: 3,
            self._commit: 8, self._reset: 4, self.pull: 8, self.hold: 3, self._delete_topic: 1,
            self._delete_group: 1, self.rest: 2, self._clone: 3,
        }  # fmt: skip
        for act in self.random.choices(list(acts), list(acts.values()), k=steps):
            await act()
            await self.compare(getattr(act, "__name__", ""))

    async def _join(self) -> None:
        """Send a heartbeat for one or both groups. Members hear of a new one, and of new topics,
        which are those of the whole group."""
        name, peer = await self.somebody()
        groups = self.random.sample(GROUPS, self.random.choice((1, 2)))
        topics = self.random.choice((list(QUEUES), list(QUEUES), *([topic] for topic in QUEUES)))
        members = {one for group in groups for one in self.model.clients(group)} - {name}
        before = {member: self.peers[member].notices for member in members}
        is_news = {
            group: (group, name) not in self.model.members
            or self.model.reads.get(group) != set(topics)
            for group in groups
        }
        await peer.ask(Code.HEART_BEAT, {}, 0, heartbeat(name, dict.fromkeys(groups, topics)))
        self.model.members |= {(group, name): None for group in groups}
        self.model.reads |= {group: set(topics) for group in groups}
        await trio.sleep(0.5)
        for member in members:
            is_due = any(is_news[group] and (group, member) in self.model.members
                         for group in groups)  # fmt: skip
            is_notified = self.peers[member].notices > before[member]
            assert is_notified == is_due, f"notices: {member} of {name}: {is_notified}, {topics}"

    async def _leave(self) -> None:
        """Leave one group by a request, or all by the end of the connection; members hear of it."""
        name, peer = await self.somebody()
        groups = {group for group in GROUPS if (group, name) in self.model.members}
        before = {member: peer.notices for member, peer in self.peers.items()}
        if self.random.random() < 0.5:
            group = self.random.choice(GROUPS)
            header = UnregisterClientRequest(clientID=name, consumerGroup=group)
            await peer.ask(Code.UNREGISTER_CLIENT, header.encode(), 0)
            groups &= {group}
        else:
            peer.close()
            del self.peers[name]
        for group in groups:
            self.model.leave(group, name)
        await trio.sleep(0.5)
        for group, member in self.model.members:
            is_notified = group not in groups or self.peers[member].notices > before[member]
            assert is_notified, f"notices: {member} did not hear that {name} left {group}"

    async def _lock(self) -> None:
        name, peer = await self.somebody()
        group = self.random.choice(GROUPS)
        locks, now = self.model.locks, trio.current_time()
        places = {(group, *self.queue()) for _ in range(3)}
        places = {place for place in places if not self.model.is_doubtful(place, now)}
        expected = {
            place for place in places
            if place not in locks or locks[place][0] == name or locks[place][1] <= now
        }  # fmt: skip
        answer = await peer.ask(Code.LOCK_BATCH_MQ, {}, 0, queues_of(name, group, places))
        queues = LockedQueues.decode(answer.body).lock_ok_mq_set
        actual = {(group, queue.topic, queue.queue_id) for queue in queues}
        assert actual == expected, f"locks: {name} of {group} got {actual}, expected {expected}"
        self.model.locks |= dict.fromkeys(expected, (name, now + LOCK_S))

    async def _unlock(self) -> None:
        name, peer = await self.somebody()
        group = self.random.choice(GROUPS)
        places = {(group, *self.queue()) for _ in range(3)}
        await peer.ask(Code.UNLOCK_BATCH_MQ, {}, 0, queues_of(name, group, places))
        for place in places:
            if self.model.locks.get(place, ("", 0))[0] == name:
                del self.model.locks[place]

    async def _commit(self) -> None:
        """Commit any offset, also one beyond the end; it counts unless a reset is pending."""
        _, peer = await self.somebody()
        place = group, topic, queue = self.place()
        offset = self.random.choice((-1, 0, self.random.randrange(9), self.random.randrange(99)))
        fields: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": queue}
        await peer.commit(ResponseCode.SUCCESS, offset, **fields)
        if offset >= 0 and place not in self.model.resets:
            self.model.stands[place] = offset

    async def _reset(self) -> None:
        """Reset one queue to an offset, or all of a topic to their ends or beginnings."""
        operator = await self.peer("operator")
        group, topic, queue = self.place()
        fields: dict[str, Any] = {"topic": topic, "group": group, "isForce": True}
        if self.random.random() < 0.6:
            end = self.model.end(topic, queue)
            offset = self.random.randrange(end + 3)
            fields |= {"queueId": queue, "offset": offset, "timestamp": 0}
            expected = {queue: offset} if offset <= end else {}
        else:
            to_end = self.random.random() < 0.5
            # Without a queue the offset does not count.
            fields |= {"offset": self.random.choice((None, 1)), "timestamp": -1 if to_end else 0}
            ends = {number: self.model.end(topic, number) for number in range(QUEUES[topic])}
            expected = ends if to_end else dict.fromkeys(ends, 0)
        code = ResponseCode.SUCCESS if expected else ResponseCode.SYSTEM_ERROR
        header = ResetOffsetRequest(**fields).encode()
        answer = await operator.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, header, code)
        if expected:
            table = QueueOffsets.decode(answer.body).offset_table
            actual = {place.queue_id: offset for place, offset in table.items()}
            assert actual == expected, f"reset: {topic}: {actual}, expected {expected}"
        for number, offset in expected.items():
            self.model.stands[group, topic, number] = offset
            self.model.resets[group, topic, number] = (offset, float("inf"))

    async def _clone(self) -> None:
        """Copy a group's positions of one topic, or of all; to a group that is online only those of
        topics that it reads."""
        operator = await self.peer("operator")
        source, target = self.random.sample(GROUPS, 2)
        topic = self.random.choice((None, *QUEUES))
        is_offline = self.random.random() < 0.5
        header = CloneOffsetRequest(
            srcGroup=source, destGroup=target, topic=topic, offline=is_offline
        )
        await operator.ask(Code.CLONE_GROUP_OFFSET, header.encode(), 0)
        topics: Iterable[str] = QUEUES if is_offline else self.model.reads.get(target, ())
        for (group, name, queue), offset in list(self.model.stands.items()):
            if group != source or name not in topics or topic not in (None, name):
                continue
            if (target, name, queue) not in self.model.resets:
                self.model.stands[target, name, queue] = offset

    async def _delete_topic(self) -> None:
        """Delete a topic and create it with empty queues; a waiting pull is sent to the start."""
        operator = await self.peer("operator")
        fields = TopicRequest(topic="U").encode()
        last = QUEUES["U"] - 1
        async with self.held("U", last) as answers:
            await operator.ask(Code.DELETE_TOPIC_IN_BROKER, fields, 0)
            await operator.ask(Code.GET_TOPIC_CONFIG, fields, ResponseCode.TOPIC_NOT_EXIST)
            # The last queue cannot be read before it has a message.
            await operator.create(topic="U", readQueueNums=last, writeQueueNums=last + 1)
            await operator.send(b="U", e=last, body=b"first", properties={"TAGS": "red"})
            await operator.create(topic="U", readQueueNums=last + 1, writeQueueNums=last + 1)
            await trio.sleep(0.5)
        for answer in answers:
            actual = answer.code, answer.fields.get("nextBeginOffset")
            assert actual == (ResponseCode.PULL_OFFSET_MOVED, "0"), f"deleted: held pull: {actual}"
        for queue in range(QUEUES["U"]):
            self.model.sent.pop(("U", queue), None)
        self.model.sent["U", last] = [(b"first", "red")]
        self.model.forget(lambda place: place[1] == "U")

    async def _delete_group(self) -> None:
        operator = await self.peer("operator")
        cleans = self.random.random() < 0.5
        header = DeleteGroupRequest(groupName="h", cleanOffset=cleans)
        await operator.ask(Code.DELETE_SUBSCRIPTIONGROUP, header.encode(), 0)
        await operator.put_group(group_name="h")
        if cleans:
            self.model.forget(lambda place: place[0] == "h")

    async def rest(self) -> None:
        """Let time pass while members send heartbeats."""
        for _ in range(self.random.choice((1, 3))):
            await trio.sleep(25)
            for group, name in self.model.members:
                body = heartbeat(name, {group: sorted(self.model.reads[group])})
                await self.peers[name].ask(Code.HEART_BEAT, {}, 0, body)


def heartbeat(name: str, groups: dict[str, list[str]]) -> bytes:
    """Return the body of a heartbeat for groups and their topics."""
    consumers = [
        ConsumerData(
            group_name=group,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_version=1) for topic in topics
            ],
        )
        for group, topics in groups.items()
    ]
    return HeartbeatData(client_id=name, consumer_data_set=consumers).encode()


def queues_of(name: str, group: str, places: set[Place]) -> bytes:
    queues = [
        MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue)
        for _, topic, queue in sorted(places)
    ]
    return LockQueues(client_id=name, consumer_group=group, mq_set=queues).encode()
