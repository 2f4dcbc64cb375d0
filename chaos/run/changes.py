"""Topics that an operator changes under load: more queues, or closed for a while.

A change is repeated until every node of each group has it, as a slave that is promoted before it
has copied its master's tables would keep the old ones. Only then is the change recorded.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.run.load import ClientFailure, lasting_names
from rocketbed.chaos.run.operating import LOOK_S, Operating
from rocketbed.chaos.run.topics import topic_table
from rocketbed.client.admin import READ_WRITE, Admin
from rocketbed.wire.bodies import PERM_READ, PERM_WRITE

NARROW_S: Final = 2.0
"""Longest time for which a topic is closed to senders or to readers."""


@dataclass(slots=True)
class Changes(Operating):
    """The operator's work on the topics that exist during the whole run."""

    NAME = "changes"
    WHAT = "a change of a topic"
    _queues: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._queues = dict.fromkeys(lasting_names(self.plan), self.plan.producers.queues)

    @property
    def count(self) -> int:
        return self.plan.producers.changes

    async def change(self, random: Random) -> None:
        """Give a topic more queues or, during the fault phase, perhaps close it for a while."""
        queues, topic = self._queues, random.choice(list(self._queues))
        if random.random() < 0.5 or self.is_over:
            queues[topic] += random.randint(1, 3)
        else:
            await self._change(topic, queues[topic], random.choice((PERM_READ, PERM_WRITE)))
            await self.pause(NARROW_S * random.random())
            self.backend.history.event(Function.NODE, "", "topic_widening", {"topic": topic})
        await self._change(topic, queues[topic], READ_WRITE)

    async def _change(self, topic: str, queues: int, perm: int) -> None:
        brokers = list(self.plan.shape.group_nodes())
        async with Admin(self.backend.world, nameservers=self.backend.nameservers()) as admin:
            while True:
                with suppress(*ClientFailure):
                    await admin.create_topic(topic, queues=queues, perm=perm, brokers=brokers)
                with suppress(*ClientFailure):
                    if await self._is_everywhere(admin, topic, queues, perm):
                        break
                await trio.sleep(LOOK_S)
        fields = {"topic": topic, "queues": queues, "perm": perm}
        self.backend.history.event(Function.NODE, "", "topic_changed", fields)

    async def _is_everywhere(self, admin: Admin, topic: str, queues: int, perm: int) -> bool:
        """Return whether every node has the change. Raises `ClientFailure`."""
        for node in self.members.nodes:
            if node in self.without and self.backend.state(node) == "down":
                continue
            table = await topic_table(admin, self.backend, node)
            row = table.topic_config_table.get(topic)
            if row is None or (row.read_queue_nums, row.write_queue_nums, row.perm) != (
                queues,
                queues,
                perm,
            ):
                return False
        return True
