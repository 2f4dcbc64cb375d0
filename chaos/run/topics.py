"""The topics of a run: those created before the load, and those created under load."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.load import ClientFailure, LoadControl, batch_queue_names, late_names
from rocketbed.client.admin import Admin
from rocketbed.client.routes import DEFAULT_QUEUES
from rocketbed.wire.bodies import TopicConfigTable
from rocketbed.wire.command import RequestCode

LOOK_S: Final = 0.1
MADE_MAX: Final = 16
"""Topics that are created at the same time."""
REST_S: Final = 60.0
BATCH_QUEUES: Final = "+queue.type=BatchCQ"


async def topic_table(admin: Admin, backend: Backend, node: str) -> TopicConfigTable:
    """Return a node's own table of topics and their deletions. Raises `ClientFailure`."""
    host, port = backend.address(node)
    code = RequestCode.GET_ALL_TOPIC_CONFIG
    answer = await admin.ask(f"{host}:{port}", code, what=f"topics of {node}")
    return TopicConfigTable.decode(answer.body)


@dataclass(frozen=True, slots=True)
class RunTopics:
    plan: Plan
    backend: Backend
    control: LoadControl
    """Its `topics` are those that clients know."""

    async def make(self, topics: Iterable[str], queues: int | None = None) -> None:
        """Create topics at every master. Raises `ClientFailure`."""
        count = self.plan.producers.queues if queues is None else queues
        brokers = list(self.plan.shape.group_nodes())
        batches = batch_queue_names(self.plan)
        limit = trio.CapacityLimiter(MADE_MAX)
        failures: list[Exception] = []

        async def make(topic: str) -> None:
            kind = BATCH_QUEUES if topic in batches else None
            async with limit:
                try:
                    await admin.create_topic(topic, queues=count, brokers=brokers, attributes=kind)
                except ClientFailure as failure:
                    failures.append(failure)

        async with (
            Admin(self.backend.world, nameservers=self.backend.nameservers()) as admin,
            trio.open_nursery() as nursery,
        ):
            for topic in topics:
                nursery.start_soon(make, topic)
        if failures:
            raise failures[0]

    async def make_late(self) -> None:
        """Create further topics under load, half of them by the first send to each."""
        random = Random(f"{self.plan.seed}/late")
        names = late_names(self.plan)
        for name in names:
            await trio.sleep(random.uniform(0, self.plan.faults_s / (len(names) + 1)))
            while random.random() < 0.5 and not await self.make_as_sends(name):
                await trio.sleep(LOOK_S)
            self._tell(name)

    async def make_rest(self) -> None:
        """Create the late topics that some broker still lacks, so that all exist at the end."""
        with trio.move_on_after(REST_S):
            for name in late_names(self.plan):
                while not await self.make_as_sends(name):
                    await trio.sleep(LOOK_S)
                self._tell(name)

    async def make_as_sends(self, name: str) -> bool:
        """Create a topic everywhere, as a first send would. Return whether that succeeded."""
        try:
            await self.make([name], DEFAULT_QUEUES)
        except ClientFailure:
            return False
        return True

    def _tell(self, name: str) -> None:
        if name not in self.control.topics:
            self.control.topics.append(name)
