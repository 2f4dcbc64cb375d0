"""One node and clients of two groups: members that come and go, locks, positions and their resets,
held pulls, several sends at once, topics that are deleted and made again, beside a model."""

from collections.abc import Awaitable, Callable
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
LOCK_S: Final = 60.0


def run_groups(seed: int) -> str:
    """Three lives of a node; they end by a stop or a kill."""
    digest, image, model = "", DiskImage(), Model()
    for life in range(3):
        run = run_alone(_serve, model, f"{seed}/{life}", image=image, seed=f"groups/{seed}/{life}")
        remarks = [line.fields for line in run.log if line.event == "topics.remark"]
        assert not remarks, f"topics: {remarks} at a start"
        digest += run.digest
        image = run.image
        model.started_again()
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
    """What they do."""

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
        """So many of them, as drawn."""
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self.send: 10, self._join: 4, self._leave: 2, self._lock: 6, self._unlock: 3,
            self._commit: 8, self._reset: 4, self.pull: 8, self.hold: 3, self._delete_topic: 1,
            self._delete_group: 1, self.rest: 2, self._clone: 3,
        }  # fmt: skip
        for act in self.random.choices(list(acts), list(acts.values()), k=steps):
            await act()
            await self.compare(getattr(act, "__name__", ""))

    async def _join(self) -> None:
        """A client of one or both groups; the other members of a group hear of a new one, and of
        other topics, which are the whole group's."""
        name, peer = await self.somebody()
        groups = self.random.sample(GROUPS, self.random.choice((1, 2)))
        topics = self.random.choice((list(QUEUES), list(QUEUES), *([topic] for topic in QUEUES)))
        wanted = [SubscriptionData(topic=topic, sub_version=1) for topic in topics]
        data = HeartbeatData(
            client_id=name,
            consumer_data_set=[
                ConsumerData(group_name=group, subscription_data_set=wanted) for group in groups
            ],
        )
        others = {other for group, other in self.model.members if group in groups and other != name}
        before = {other: self.peers[other].notices for other in others}
        is_new = {
            group: (group, name) not in self.model.members
            or self.model.reads.get(group) != set(topics)
            for group in groups
        }
        await peer.ask(Code.HEART_BEAT, {}, 0, data.encode())
        self.model.members |= {(group, name): None for group in groups}
        self.model.reads |= {group: set(topics) for group in groups}
        await trio.sleep(0.5)
        for other in others:
            mine = {group for group in groups if (group, other) in self.model.members}
            told = self.peers[other].notices > before[other]
            is_due = any(is_new[one] for one in mine)
            assert told == is_due, f"notices: {other} of {name}: {told}, {topics}"

    async def _leave(self) -> None:
        """One group by a word, or all by the end of the connection; who stays hears of it."""
        name, peer = await self.somebody()
        mine = {group for group in GROUPS if (group, name) in self.model.members}
        before = {other: one.notices for other, one in self.peers.items()}
        if self.random.random() < 0.5:
            group = self.random.choice(GROUPS)
            header = UnregisterClientRequest(clientID=name, consumerGroup=group)
            await peer.ask(Code.UNREGISTER_CLIENT, header.encode(), 0)
            mine &= {group}
        else:
            peer.close()
            del self.peers[name]
        for group in mine:
            self.model.leave(group, name)
        await trio.sleep(0.5)
        for group, other in self.model.members:
            told = group not in mine or self.peers[other].notices > before[other]
            assert told, f"notices: {other} of {name}, who left {group}"

    async def _lock(self) -> None:
        name, peer = await self.somebody()
        group = self.random.choice(GROUPS)
        places = {(group, *self.queue()) for _ in range(3)}
        now = trio.current_time()
        held = self.model.locks
        places = {one for one in places if not self.model.is_doubtful(one, now)}
        want = {
            place for place in places if place not in held or held[place][0] == name
            or held[place][1] <= now
        }  # fmt: skip
        answer = await peer.ask(Code.LOCK_BATCH_MQ, {}, 0, queues_of(name, group, places))
        got = LockedQueues.decode(answer.body).lock_ok_mq_set
        told = {(group, one.topic, one.queue_id) for one in got}
        assert told == want, f"locks: {name} of {group} got {told} for {want}"
        self.model.locks |= dict.fromkeys(want, (name, now + LOCK_S))

    async def _unlock(self) -> None:
        name, peer = await self.somebody()
        group = self.random.choice(GROUPS)
        places = {(group, *self.queue()) for _ in range(3)}
        await peer.ask(Code.UNLOCK_BATCH_MQ, {}, 0, queues_of(name, group, places))
        for place in places:
            if self.model.locks.get(place, ("", 0))[0] == name:
                del self.model.locks[place]

    async def _commit(self) -> None:
        """Anything is kept, beyond the end too; nothing while a group is being sent elsewhere."""
        _, peer = await self.somebody()
        place = group, topic, queue = self.place()
        offset = self.random.choice((-1, 0, self.random.randrange(9), self.random.randrange(99)))
        where: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": queue}
        await peer.commit(ResponseCode.SUCCESS, offset, **where)
        if offset >= 0 and place not in self.model.resets:
            self.model.stands[place] = offset

    async def _reset(self) -> None:
        """One queue to an offset, or all of a topic to their ends or beginnings."""
        operator = await self.peer("operator")
        group, topic, queue = self.place()
        values: dict[str, Any] = {"topic": topic, "group": group, "isForce": True}
        if self.random.random() < 0.6:
            end = self.model.end(topic, queue)
            offset = self.random.randrange(end + 3)
            header = ResetOffsetRequest(queueId=queue, offset=offset, timestamp=0, **values)
            want = {queue: offset} if offset <= end else {}
        else:
            to_end = self.random.random() < 0.5
            values |= {"offset": self.random.choice((None, 1))}  # without a queue the time counts
            header = ResetOffsetRequest(timestamp=-1 if to_end else 0, **values)
            ends = {one: self.model.end(topic, one) for one in range(QUEUES[topic])}
            want = ends if to_end else dict.fromkeys(ends, 0)
        code = ResponseCode.SUCCESS if want else ResponseCode.SYSTEM_ERROR
        answer = await operator.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, header.encode(), code)
        if want:
            table = QueueOffsets.decode(answer.body).offset_table
            told = {one.queue_id: offset for one, offset in table.items()}
            assert told == want, f"reset: {topic}: {told} for {want}"
        for one, offset in want.items():
            self.model.stands[group, topic, one] = offset
            self.model.resets[group, topic, one] = (offset, float("inf"))

    async def _clone(self) -> None:
        """Another group's positions, of one topic or of all that it has or reads; for a group that
        is to be online only of what it reads then."""
        operator = await self.peer("operator")
        source, other = self.random.sample(GROUPS, 2)
        topic = self.random.choice((None, *QUEUES))
        is_offline = self.random.random() < 0.5
        header = CloneOffsetRequest(
            srcGroup=source, destGroup=other, topic=topic, offline=is_offline
        )
        await operator.ask(Code.CLONE_GROUP_OFFSET, header.encode(), 0)
        reads = QUEUES if is_offline else self.model.reads.get(other, ())
        for (group, one, queue), offset in list(self.model.stands.items()):
            place = other, one, queue
            if group != source or one not in reads or topic not in (None, one):
                continue
            if place not in self.model.resets:
                self.model.stands[place] = offset

    async def _delete_topic(self) -> None:
        """And make it again: nothing is in it, and nobody has a position there."""
        operator = await self.peer("operator")
        fields = TopicRequest(topic="U").encode()
        last = QUEUES["U"] - 1
        async with self.held("U", last) as answers:
            await operator.ask(Code.DELETE_TOPIC_IN_BROKER, fields, 0)
            await operator.ask(Code.GET_TOPIC_CONFIG, fields, ResponseCode.TOPIC_NOT_EXIST)
            # Nobody may read the last queue before something is in it.
            await operator.create(topic="U", readQueueNums=last, writeQueueNums=last + 1)
            await operator.send(b="U", e=last, body=b"first", properties={"TAGS": "red"})
            await operator.create(topic="U", readQueueNums=last + 1, writeQueueNums=last + 1)
            await trio.sleep(0.5)
        for answer in answers:
            told = answer.code, answer.fields.get("nextBeginOffset")
            want = ResponseCode.PULL_OFFSET_MOVED, "0"
            assert told == want, f"deleted: a pull that was held is sent to {told}"
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
        """Members keep saying that they are there."""
        for _ in range(self.random.choice((1, 3))):
            await trio.sleep(25)
            for group, name in self.model.members:
                wanted = [
                    SubscriptionData(topic=topic, sub_version=1)
                    for topic in sorted(self.model.reads[group])
                ]
                consumer = ConsumerData(group_name=group, subscription_data_set=wanted)
                data = HeartbeatData(client_id=name, consumer_data_set=[consumer])
                await self.peers[name].ask(Code.HEART_BEAT, {}, 0, data.encode())


def queues_of(name: str, group: str, places: set[Place]) -> bytes:
    wanted = [
        MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue)
        for _, topic, queue in sorted(places)
    ]
    return LockQueues(client_id=name, consumer_group=group, mq_set=wanted).encode()
