"""Topics that an operator changes under load: more queues, or closed for a while.

A change is repeated until every node of each group has it, as a slave that is promoted before it
has copied its master's tables would go on with the old ones. The history tells of it from then on.
When the faults are over, all but the first are left out, and nothing is closed any more: readers
are to be given everything soon then.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from rocketbed.chaos.history import Function
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.trial.api import Backend
from rocketbed.chaos.trial.load import ClientFailure, lasting_names
from rocketbed.chaos.trial.members import Members
from rocketbed.chaos.trial.topics import topic_table
from rocketbed.client.admin import READ_WRITE, Admin
from rocketbed.wire.bodies import PERM_READ, PERM_WRITE

LOOK_S: Final = 0.5
REST_S: Final = 60.0
"""Longest time for what is left to do once the cluster is healed."""
NARROW_S: Final = 2.0
"""Longest time for which a topic is closed to senders or to readers."""


@dataclass(slots=True)
class Changes:
    """The operator's work on topics that stay, one change after the other."""

    plan: Plan
    backend: Backend
    members: Members
    left: int = 0
    without: frozenset[str] = frozenset()
    """Nodes that stay away, so that nobody waits for their word."""
    _over: trio.Event = field(default_factory=trio.Event)
    _done: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.left = self.plan.producers.changes

    async def run(self) -> None:
        """Make changes in the storm, and end the last one."""
        random = Random(f"{self.plan.seed}/changes")
        queues = dict.fromkeys(lasting_names(self.plan), self.plan.producers.queues)
        pause_s = self.plan.storm_s / (self.left + 1)
        while self.left:
            with trio.move_on_after(random.uniform(0.1, 0.9) * pause_s):
                await self._over.wait()
            if self._over.is_set() and self.left < self.plan.producers.changes:
                break
            topic = random.choice(list(queues))
            if random.random() < 0.5 or self._over.is_set():
                queues[topic] += random.randint(1, 3)
            else:
                await self._change(topic, queues[topic], random.choice((PERM_READ, PERM_WRITE)))
                with trio.move_on_after(NARROW_S * random.random()):
                    await self._over.wait()
                self.backend.history.event(Function.NODE, "", "topic_widening", {"topic": topic})
            await self._change(topic, queues[topic], READ_WRITE)
            self.left -= 1
        self._done.set()

    async def finish(self, without: frozenset[str]) -> str:
        """Wait for all of it when nothing is broken any more; what is not done in time."""
        self.without = without
        self._over.set()
        with trio.move_on_after(REST_S):
            await self._done.wait()
        return "" if self._done.is_set() else "a change of a topic"

    async def _change(self, topic: str, queues: int, perm: int) -> None:
        brokers = list(self.plan.shape.group_nodes())
        async with Admin(self.backend.world, nameservers=self.backend.nameservers()) as admin:
            while True:
                with suppress(*ClientFailure):
                    await admin.create_topic(topic, queues=queues, perm=perm, brokers=brokers)
                with suppress(*ClientFailure):
                    if await self._is_known(admin, topic, queues, perm):
                        break
                await trio.sleep(LOOK_S)
        fields = {"topic": topic, "queues": queues, "perm": perm}
        self.backend.history.event(Function.NODE, "", "topic_changed", fields)

    async def _is_known(self, admin: Admin, topic: str, queues: int, perm: int) -> bool:
        """Whether every node has it. Raises `ClientFailure`."""
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
