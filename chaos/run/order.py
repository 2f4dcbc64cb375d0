"""Waits, after the faults, until the cluster is in order; names what is missing if it is not.

Each wait has a limit, against hangs; a wait that reaches it is a stall.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import producer_names
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.listeners import Hearing
from rocketbed.chaos.run.load import ClientFailure, LoadControl, lasting_names
from rocketbed.chaos.run.members import Members
from rocketbed.chaos.run.reading import Reading, backlog, misrouted
from rocketbed.client.consumer import Consumer

LOOK_S: Final = 0.1
SET_UP_S: Final = 60.0
HEARD_S: Final = 300.0
"""Longest time for listeners to get all messages, with all repetitions."""
DRAIN_S: Final = 60.0
"""Longest time for the healed cluster to come into order: more than the half-open time-out of 20
s."""
TOPICS_MAX: Final = 20
"""Topics whose routes are checked."""
READ_EACH_S: Final = 0.005
"""Additional time for each message that was sent."""
READ_QUEUE_S: Final = 3.0
"""Additional time for each queue, about: a dozen requests, one after the other, over slow links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Waits for one run."""

    plan: Plan
    backend: Backend
    members: Members
    control: LoadControl
    reading: Reading
    groups: list[int]
    """Numbers of the groups that consume."""
    hearing: Hearing
    stall: Callable[[str, str, str], None]
    """Called with the kind of the wait, its subject and the reason, if it was in vain."""

    async def masters(self) -> None:
        for group in self.plan.shape.group_nodes():
            with trio.move_on_after(SET_UP_S) as scope:
                # A leader that is left broken loses its role as soon as another one is elected.
                while not await self.members.wait_serving(self.members.leader(group)):
                    await trio.sleep(LOOK_S)
            if scope.cancelled_caught:
                self.stall("leader", group, f"no master serves {SET_UP_S:g} s after the faults")

    async def producers(self, since_ns: int) -> None:
        """Wait until each producer had a send acknowledged since then, or the limit is reached.

        For real machines: one that is busy with other work recovers late, which is not the node's
        fault. In simulation time is the plan's.
        """
        with trio.move_on_after(SET_UP_S):
            for name in producer_names(self.plan):
                while self.control.acknowledged_ns.get(name, 0) < since_ns:
                    await trio.sleep(LOOK_S)

    async def replicas(self) -> None:
        """Wait until every slave has all of its master's log, and the queues of its master's
        tables."""
        limit_s = self.limit_s(DRAIN_S)
        for group in self.plan.shape.group_nodes():
            with trio.move_on_after(limit_s) as scope:
                while (reason := await self._disorder(group)) is not None:
                    await trio.sleep(LOOK_S)
            if scope.cancelled_caught:
                self.stall("replicas-equal", group, f"after {limit_s:.0f} s: {reason}")
            elif self.backend.elects:
                await self._all_in_sync(group, limit_s)

    async def ends(self, clients: list[str], kind: str, reason: str) -> None:
        limit_s = self.limit_s(DRAIN_S)
        with trio.move_on_after(limit_s) as scope:
            for name in clients:
                while self.backend.client_state(name) != "down":
                    await trio.sleep(LOOK_S)
        if scope.cancelled_caught:
            self.stall(kind, "all", f"{reason} {limit_s:.0f} s after the end")

    async def listeners(self) -> None:
        """Wait until listeners had all acknowledged messages, or have been idle for long: some
        messages may be lost."""
        with trio.move_on_after(HEARD_S) as scope:
            while self.hearing.missing() and not self.hearing.is_quiet():
                await trio.sleep(LOOK_S)
        if scope.cancelled_caught:
            self.stall("listeners", "all", f"after {HEARD_S:g} s: {self.hearing.missing()}")

    async def readers(self) -> None:
        """Wait until every group and every follower has reached the end of every queue."""
        reading, reason = self.reading, "nothing could be asked"
        numbers = self.groups
        world, nameservers = self.backend.world, self.backend.nameservers()
        limit_s = self.limit_s(DRAIN_S)
        with trio.move_on_after(limit_s) as scope:
            async with Consumer(world, nameservers=nameservers, group="onlooker") as consumer:
                while reason:
                    try:
                        reason = await backlog(reading, numbers, consumer)
                    except ClientFailure as error:
                        reason = f"{error}"
                    if reason:
                        await trio.sleep(LOOK_S)
        if scope.cancelled_caught:
            self.stall("backlog", "consumers", f"after {limit_s:.0f} s: {reason}")

    async def routes(self) -> None:
        """Wait until each running nameserver lists exactly the brokers with their ids, and the
        topics with their queues and permissions."""
        address, up = self.backend.address, self.backend.state
        members = self.members.members.values()
        topics = lasting_names(self.plan)[:TOPICS_MAX]
        ids = {
            address(member.name): member.broker_id
            for member in members
            if up(member.name) == "running"
        }
        for name in self.plan.shape.nameserver_names:
            reason = "" if up(name) != "running" else "nothing could be asked"
            with trio.move_on_after(DRAIN_S) as scope:
                while reason:
                    try:
                        host, port = address(name)
                        where = f"{host}:{port}"
                        reason = await misrouted(self.backend.world, where, ids, topics)
                    except ClientFailure as error:
                        reason = f"{error}"
                    if reason:
                        await trio.sleep(LOOK_S)
            if scope.cancelled_caught:
                self.stall("routes", name, f"after {DRAIN_S:g} s: {reason}")

    async def _all_in_sync(self, group: str, limit_s: float) -> None:
        """Wait until the leader counts all its followers as in sync."""
        expected, in_sync = self.plan.shape.brokers, 0
        with trio.move_on_after(limit_s):
            while in_sync < expected:
                sample = await self.backend.observe(self.members.leader(group))
                in_sync = 0 if sample is None else sample.in_sync
                if in_sync < expected:
                    await trio.sleep(LOOK_S)
        if in_sync < expected:
            self.stall("in-sync", group, f"after {limit_s:.0f} s: {in_sync} of {expected} are")

    async def _disorder(self, group: str) -> str | None:
        leader = self.members.leader(group)
        master = await self.backend.observe(leader)
        if master is None:
            return f"{leader} does not answer"
        if master.dispatched < master.written:
            return f"{leader} has dispatched up to {master.dispatched} of {master.written}"
        for node in self.members.followers(group):
            sample = await self.backend.observe(node)
            if sample is None:
                return f"{node} does not answer"
            if not sample.is_following or sample.written != master.written:
                state = "follows" if sample.is_following else "does not follow"
                return f"{node} {state}, its log ends at {sample.written} of {master.written}"
            if sample.dispatched < sample.written:
                return f"{node} has dispatched up to {sample.dispatched} of {sample.written}"
            if sample.unmade:
                return f"{node} makes queues of {sample.unmade} again"
        return None

    def limit_s(self, base_s: float) -> float:
        """Return the time after which work on all messages and queues counts as hanging."""
        queues = len(self.reading.topics) * self.plan.producers.queues
        sent = sum(self.control.counts.values())
        return base_s + READ_EACH_S * sent + READ_QUEUE_S * queues
