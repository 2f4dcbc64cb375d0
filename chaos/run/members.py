"""Roles and settings of the nodes, and failover by hand.

In classic mode there is no election: an operator makes a slave the master (broker id 0), and the
old master is its slave from its next start on, truncated to the common part of the logs
(`rbDiverged=cut`, design.md 13). The conductor is that operator. With a controller, the ids here
follow its elections.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.plan.plan import Shape
from rocketbed.chaos.run.api import Backend, Sample
from rocketbed.world.api import Address

CLUSTER: Final = "testbed"
SERVING_S: Final = 30.0
LOOK_S: Final = 0.05
KEEP: Final = {"cleanFileForciblyEnable": "false", "fileReservedTime": "876000"}
"""Keep a full disk or a jump of the wall clock from making a node delete acknowledged messages."""
ANSWER_S: Final = 15.0
ELECTION_S: Final = 30.0
"""A dead broker is noticed after 10 s at the latest; the election of its group is tried for 9 s."""


@dataclass(slots=True)
class Member:
    name: str
    group: str
    broker_id: int
    should_run: bool = False
    """True while it is meant to run."""
    cut: int = 0
    """Number of the promotion after which it may truncate its log to its master's; 0 for none."""
    joined: bool = True
    """True if its log was seen to agree with its master's since that one became master, or since
    its own disk was lost. Otherwise its log may be long because of messages that no other node has,
    so its length says nothing. False for a master that lost its disk."""
    has_nothing_common: bool = False
    """True if a slave with an empty log was promoted: this node's log is refused for good, and the
    node reports that its disk must be emptied."""
    incarnation: int = 0
    busy: bool = False
    """True while it is being started or fenced; nothing else starts it meanwhile."""
    doubled: bool = False
    """True if it is started as a second master, by an operator's error."""
    own: dict[str, str] = field(default_factory=dict)
    """Settings that an operator gave it, in place of the group's."""

    def claim(self) -> None:
        """Mark it as about to start. A fault that comes after this may not be undone by the
        start."""
        self.busy = self.should_run = True

    def set(self, key: str, value: str) -> None:
        """Give it a setting from its next start on; with no value the group's applies again."""
        self.own[key] = value
        if not value:
            del self.own[key]


@dataclass(slots=True)
class Members:
    shape: Shape
    backend: Backend
    members: dict[str, Member] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """Group -> epoch of the last election that was seen."""
    promotions: dict[str, int] = field(default_factory=dict)
    """Group -> number of promotions."""
    look: Callable[[], None] = lambda: None
    """Records nodes that ended on their own; after their next start nothing shows it."""

    def __post_init__(self) -> None:
        for group, nodes in self.shape.group_nodes().items():
            for number, node in enumerate(nodes):
                self.members[node] = Member(node, group, number)

    def count_promotion(self, group: str) -> int:
        """Return the number of a new promotion."""
        number = self.promotions[group] = self.promotions.get(group, 0) + 1
        return number

    def at(self, address: Address) -> str | None:
        """Return the node at a client address, None for an unknown address."""
        return next((node for node in self.members if self.backend.address(node) == address), None)

    @property
    def nodes(self) -> list[str]:
        return list(self.members)

    def leader(self, group: str) -> str:
        return next(m.name for m in self.members.values() if m.group == group and not m.broker_id)

    def leaders(self) -> dict[str, str]:
        return {group: self.leader(group) for group in self.shape.group_nodes()}

    def is_leader(self, node: str) -> bool:
        return node in self.members and self.members[node].broker_id == 0

    def followers(self, group: str) -> list[str]:
        return [m.name for m in self.members.values() if m.group == group and m.broker_id]

    def settings(self, node: str) -> dict[str, str]:
        member, shape = self.members[node], self.shape
        if shape.failover:
            number = shape.group_nodes()[member.group].index(node) + 1
            return {
                "brokerClusterName": CLUSTER,
                "brokerName": member.group,
                "rbReplica": str(number),
                "rbReplicas": str(shape.brokers),
                "flushDiskType": "SYNC_FLUSH" if shape.flush == "sync" else "ASYNC_FLUSH",
                "mappedFileSizeCommitLog": str(shape.segment),
                **KEEP,
                **shape.settings,
                **member.own,
            }
        is_master = member.broker_id == 0 or member.doubled
        master_role = "SYNC_MASTER" if shape.repl == "sync" else "ASYNC_MASTER"
        lines = {
            "brokerClusterName": CLUSTER,
            "brokerName": member.group,
            "brokerId": "0" if is_master else str(member.broker_id),
            "brokerRole": master_role if is_master else "SLAVE",
            "flushDiskType": "SYNC_FLUSH" if shape.flush == "sync" else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": str(shape.segment),
            **KEEP,
        }
        if shape.repl == "sync":
            lines["inSyncReplicas"] = str(shape.copies)
        if member.cut and not is_master:
            lines["rbDiverged"] = f"cut:{member.cut}"
        return {**lines, **shape.settings, **member.own}

    async def start_all(self) -> None:
        """Start everything for the first time.

        With elections the first node of each group has to be its master before the others start;
        that is waited for without limit.
        """
        for group, nodes in self.shape.group_nodes().items():
            for node in nodes:
                await self.start(node)
                if self.backend.elects and node == nodes[0]:
                    while await self._look_at_election(group) != node:
                        await trio.sleep(LOOK_S)

    async def follow_elections(self) -> None:
        """Take every group's master from its controller until cancelled."""
        while True:
            for group in self.shape.group_nodes():
                await self._look_at_election(group)
            await self.backend.election()

    async def _look_at_election(self, group: str) -> str | None:
        """Return the elected master, None before an election. A change of master is recorded."""
        elected = await self.backend.elected(group)
        if elected is None:
            return None
        former = self.leader(group)
        if elected.epoch > self.epochs.get(group, 0) and elected.start is not None:
            self.epochs[group] = elected.epoch
            if elected.node != former:
                old, new = self.members[former], self.members[elected.node]
                old.broker_id, new.broker_id = new.broker_id, old.broker_id
                fields = {"former": former, "written": elected.start, "epoch": elected.epoch}
                self.backend.history.event(Function.NODE, elected.node, "promote", fields)
        return elected.node

    async def start(self, node: str) -> None:
        """Start a node that is down; does not wait."""
        member = self.members[node]
        if self.backend.state(node) != "down" or member.busy:
            return
        if member.should_run:  # it ended on its own, perhaps not recorded yet
            self.look()
        if not member.busy:
            member.claim()
            await self.launch(node)

    async def launch(self, node: str) -> None:
        """Start a node that is down and was claimed for that."""
        member = self.members[node]
        try:
            member.incarnation += 1
            settings, elects = self.settings(node), self.backend.elects
            await self.backend.settled(node)
            fields = {
                "role": "ELECTED" if elects else settings["brokerRole"],
                "id": -1 if elects else int(settings["brokerId"]),
                "incarnation": member.incarnation,
            }
            self.backend.history.event(Function.NODE, node, "start", fields)
            await self.backend.start(node, settings)
        finally:
            member.busy = False

    async def wait_serving(self, node: str, timeout_s: float = SERVING_S) -> bool:
        """Wait until a node answers with a sample. Return whether it did in time."""
        with trio.move_on_after(timeout_s):
            while await self.backend.observe(node) is None:
                if self.backend.state(node) == "down":
                    self.look()
                    if not self.members[node].should_run:
                        return False
                await trio.sleep(LOOK_S)
            return True
        return False

    def note(self, node: str, sample: Sample) -> None:
        if sample.is_following or (sample.is_master and sample.written):
            self.members[node].joined = True

    async def longest(
        self, group: str, *, leader_too: bool = False, joined_only: bool = True
    ) -> str | None:
        """Return the running follower with the longest log, of those that had joined the master; of
        two equals one that reports no damage.

        Waits a while for nodes that do not answer yet: an operator would not pass them over. If the
        master's log is lost, and no follower had joined it, any follower will do, and with
        `joined_only=False` in any case.
        """
        leader = self.leader(group)
        candidates = [leader, *self.followers(group)] if leader_too else self.followers(group)
        with trio.move_on_after(ANSWER_S):
            for node in candidates:
                if self.backend.state(node) == "running":
                    await self.wait_serving(node, ANSWER_S)
        members = [self.members[node] for node in self.followers(group)]
        anybody = not joined_only or not any(m.joined for m in (self.members[leader], *members))
        best: tuple[int, bool, bool, str] | None = None
        for node in candidates:
            sample: Sample | None = None
            if self.backend.state(node) == "running":
                sample = await self.backend.observe(node)
            if sample is None:
                continue
            self.note(node, sample)
            if anybody or self.members[node].joined:
                is_sound = not self.backend.reported(node)
                rank = sample.written, is_sound, node == leader, node
                best = rank if best is None or rank[:3] > best[:3] else best
        return None if best is None else best[3]

    async def promote(self, node: str, *, unfenced: bool = False) -> None:
        """Make a slave the master of its group; with elections, wait for the election.

        The old master is killed first, unless `unfenced`, and starts as a slave from now on. Every
        running slave is restarted with the permission to truncate its log.
        """
        member = self.members[node]
        former = self.leader(member.group)
        if self.backend.elects:
            with trio.move_on_after(ELECTION_S):
                while self.backend.state(self.leader(member.group)) != "running":
                    await trio.sleep(LOOK_S)
            return
        if former == node:
            return
        old = self.members[former]
        sample = await self.backend.observe(node)
        if not unfenced:
            old.should_run = False
            old.busy = True
            try:
                await self.backend.kill(former)
            finally:
                old.busy = False
        old.broker_id, member.broker_id = member.broker_id, 0
        number = self.count_promotion(member.group)
        for name in self.followers(member.group):
            self.members[name].cut = number
            self.members[name].joined = False
            self.members[name].has_nothing_common = sample is not None and not sample.written
        member.cut = 0
        member.joined = True
        member.has_nothing_common = False
        await self.stop(node)
        fields = {"former": former, "written": sample.written if sample else -1}
        self.backend.history.event(Function.NODE, node, "promote", fields)
        await self.start(node)
        for name in self.followers(member.group):
            if name != former and self.backend.state(name) == "running":
                await self.stop(name)
                await self.start(name)

    async def stop(self, node: str) -> bool:
        """Send SIGTERM and wait. Return whether the node ended in time."""
        self.members[node].should_run = False
        if self.backend.state(node) == "paused":
            await self.backend.resume(node)
        return await self.backend.stop(node)
