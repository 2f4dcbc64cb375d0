"""Topics that an operator deletes while the cluster is under load, and often creates again.

The operator is careful: clients are told first, and a topic is deleted when no client uses it any
more. It is created again only after every node of each group has confirmed the deletion, since a
slave that is promoted before that would keep the old queues. Failed requests are repeated.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.load import ClientFailure, LoadControl, deleted_names
from rocketbed.chaos.run.members import Members
from rocketbed.chaos.run.operating import LOOK_S, REST_S
from rocketbed.chaos.run.topics import RunTopics, topic_table
from rocketbed.client.admin import Admin

AGAIN: Final = 0.7
"""Share of deleted topics that are created again."""
BY_SEND: Final = 0.5
"""Share of those that are created by the first send to them."""


@dataclass(slots=True)
class Deletions:
    """The operator's work on the topics to delete, one after the other."""

    plan: Plan
    backend: Backend
    control: LoadControl
    members: Members
    topics: RunTopics
    pending: list[str] = field(default_factory=list)
    """Topics that are not dealt with yet."""
    without: frozenset[str] = frozenset()
    """Nodes that stay away, so that nothing waits for their answer."""
    _done: trio.Event = field(default_factory=trio.Event)
    _recreated: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pending = deleted_names(self.plan)

    async def run(self) -> None:
        """Delete each topic at some time of the fault phase; continue after the phase with the
        remaining topics."""
        for topic in list(self.pending):
            random = Random(f"{self.plan.seed}/deleted/{topic}")
            await trio.sleep(
                random.uniform(0.1, 0.9) * self.plan.faults_s / (len(self.pending) + 1)
            )
            is_recreated, by_send = random.random() < AGAIN, random.random() < BY_SEND
            await self._take_away(topic)
            await self._delete(topic)
            if is_recreated:
                self._recreated.append(topic)
                self.backend.history.event(Function.NODE, "", "topic_again", {"topic": topic})
                while not by_send and not await self.topics.make_as_sends(topic):
                    await trio.sleep(LOOK_S)
                self.control.topics.append(topic)
            self.pending.remove(topic)
        self._done.set()

    async def finish(self, without: frozenset[str]) -> str:
        """Wait for all of it in the healed cluster. Return what is not done in time."""
        self.without = without
        with trio.move_on_after(REST_S):
            await self._done.wait()
            for topic in self._recreated:  # perhaps no send came, or a promotion lost the topic
                while not await self.topics.make_as_sends(topic):
                    await trio.sleep(LOOK_S)
        return f"deletion of {', '.join(self.pending)}" if self.pending else ""

    async def _take_away(self, topic: str) -> None:
        """Tell the clients, and wait until none sends to the topic or reads it any more."""
        self.control.topics.remove(topic)
        while self._clients(topic):
            await trio.sleep(LOOK_S)

    def _clients(self, topic: str) -> list[str]:
        """Return the running clients that still send to a topic, or read it."""
        control, state = self.control, self.backend.client_state
        names = [name for name, topics in control.topics_read.items() if topic in topics]
        names += [name for name, sends in control.sending.items() if sends[topic]]
        return [name for name in names if state(name) != "down"]

    async def _delete(self, topic: str) -> None:
        history = self.backend.history
        history.event(Function.NODE, "", "topic_leaving", {"topic": topic})
        async with Admin(self.backend.world, nameservers=self.backend.nameservers()) as admin:
            while True:
                with suppress(*ClientFailure):
                    await admin.delete_topic(topic)
                # a nameserver that is down cannot confirm the deletion
                with suppress(*ClientFailure):
                    ends = await self._deletion_ends(admin, topic)
                    if ends is not None:
                        break
                await trio.sleep(LOOK_S)
        history.event(Function.NODE, "", "topic_deleted", {"topic": topic, "ends": ends})

    async def _deletion_ends(self, admin: Admin, topic: str) -> dict[str, int] | None:
        """Return, by group of brokers, where its log ended when a topic was deleted; None until
        every node has the deletion. Raises `ClientFailure`."""
        ends: dict[str, int] = {}
        for group in self.plan.shape.group_nodes():
            order = [self.members.leader(group), *self.members.followers(group)]
            for node in order:
                if node in self.without and self.backend.state(node) == "down":
                    continue
                table = await topic_table(admin, self.backend, node)
                at = (table.rb_deleted or {}).get(topic, -1)
                if topic in table.topic_config_table or at < ends.setdefault(group, at):
                    return None
        return ends
