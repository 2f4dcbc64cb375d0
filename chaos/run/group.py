"""Members of consumer groups: their queues and tags, and rewinds.

The clients share the queues of their group. When one dies, the others continue from the positions
that the group had committed. Source: chaos.md 2.5.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from rocketbed.chaos.evidence.history import Function, Outcome
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import consumer_names
from rocketbed.chaos.run.load import TAGS, ClientFailure
from rocketbed.chaos.run.reading import HOLD_S, RETRY_S, Reading, group_name
from rocketbed.client.consumer import Consumer
from rocketbed.client.pulls import ALL
from rocketbed.world.api import World

COMMIT_EVERY: Final = 8
"""Polls between two commits of a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group of a run."""

    number: int
    members: tuple[str, ...]
    """Names of the consumers; two or more share the queues."""
    tags: tuple[str, ...]
    """Tags that it subscribes to; empty for all messages."""

    @property
    def expression(self) -> str:
        return " || ".join(self.tags) or ALL


def groups_of(plan: Plan) -> list[Group]:
    """Return the groups of a plan. Each is numbered by its first member's place among the
    consumers."""
    readers, names = plan.consumers, consumer_names(plan)
    places = [at for at in range(len(names)) if not follows(plan, at)]
    groups: list[Group] = []
    for first in range(0, len(places), readers.members):
        own = places[first : first + readers.members]
        random = Random(f"{plan.seed}/group/{own[0]}")
        tags: list[str] = []
        if random.random() < readers.filtered:
            tags = sorted(random.sample(TAGS, random.randint(1, 2)))
        members = tuple(names[at] for at in own)
        groups.append(Group(number=own[0] + 1, members=members, tags=tuple(tags)))
    return groups


def follows(plan: Plan, place: int) -> bool:
    """Return whether the consumer at a place follows queues by offsets of its own."""
    return plan.consumers.mode == "pull" or (plan.consumers.mode == "mixed" and place % 2 == 1)


@dataclass(slots=True)
class Member:
    """Consumer of a group: the program of a client's machine."""

    reading: Reading
    group: Group
    name: str
    plan: Plan
    _process: int = 0
    _lives: int = 0

    async def __call__(self, world: World) -> None:
        """Poll, and commit the group's positions, until told to stop. Start over when the client
        gives up."""
        while self.reading.control.consuming:
            self._lives += 1
            self._process = next(self.reading.control.processes)
            try:
                await self._consume(world)
            except* ClientFailure:
                await trio.sleep(RETRY_S)

    async def _consume(self, world: World) -> None:
        reading, random = self.reading, Random(f"{self.plan.seed}/{self.name}/{self._lives}")
        async with Consumer(
            world,
            nameservers=reading.nameservers,
            group=group_name(self.group.number),
            hold_s=HOLD_S,
        ) as consumer:
            subscribed: list[str] = []
            polls, committed = 0, consumer.positions()
            while reading.control.consuming:
                for topic in reading.topics[len(subscribed) :]:
                    await consumer.subscribe(topic, tags=self.group.expression, start="first")
                    subscribed.append(topic)
                if not consumer.positions():
                    await trio.sleep(RETRY_S)  # more members than queues
                    continue
                messages = await consumer.poll(timeout_s=1.0)
                for message in messages:
                    reading.note(
                        Function.DELIVER, self._process, message, self.group.number, asked_offset=-1
                    )
                polls += 1
                is_behind = not messages and consumer.positions() != committed
                if polls % COMMIT_EVERY == 0 or is_behind:
                    await self.commit(consumer)
                    committed = consumer.positions()
                    if reading.control.producing and random.random() < self.plan.consumers.rewinds:
                        self._rewind(consumer, random)
            await self.commit(consumer)

    async def commit(self, consumer: Consumer) -> None:
        await self.reading.commit(consumer, self._process, self.group.number)

    def _rewind(self, consumer: Consumer, random: Random) -> None:
        """Go back in one queue, as a user does to repair a mistake."""
        queue = random.choice(list(consumer.positions()))
        offset = random.randrange(consumer.position(queue) + 1)
        consumer.seek(queue, offset)
        row = self.reading.history.begin(
            Function.RESET_OFFSET,
            process=self._process,
            topic=queue.topic,
            queue=queue.queue_id,
            operation=self.group.number,
            node=queue.broker_name,
        )
        row.finish(Outcome.OK, queue_offset=offset)
