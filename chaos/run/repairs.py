"""Repairs by an operator: nodes that report damage, and slaves that their master refuses."""

from typing import Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.run.members import Members
from rocketbed.chaos.run.nodes import Nodes

LOOK_S: Final = 0.02
FOLLOWS_S: Final = 5.0
"""Time that a slave gets to follow before the operator replaces its disk."""


class Repairs:
    def __init__(self, members: Members, nodes: Nodes, operator: trio.Lock) -> None:
        self._members = members
        self._backend = members.backend
        self._nodes = nodes
        self._operator = operator

    async def replace(self, names: list[str]) -> list[str]:
        """Give the nodes that report damage an empty disk. Return their names.

        The only copy of a log is kept: its node is started again, which rebuilds what can be built
        from the log. If it does not serve after that, a shorter log is better than none.
        """
        nodes, members = self._nodes, self._members
        sick = [name for name in names if await self._is_sick(name)]
        for name in sick:
            group = members.members[name].group
            if members.is_leader(name):
                heir = await members.longest(group)
                if heir is None:
                    await members.stop(name)
                    await nodes.start(name)
                    if await members.wait_serving(name):
                        continue
                    heir = await members.longest(group, joined_only=False)
                if heir is None:
                    continue
                await members.promote(heir)
            elif nodes.state(members.leader(group)) == "down":
                continue  # its log may be the only copy
            await nodes.replace_disk(name)
            await nodes.start(name)
        return sick

    async def empty_refusing(self) -> None:
        """Empty the disk of each slave that reports that its log has nothing in common with its
        master's, since one of the two lost its log and then took messages.

        Only if the master is sound: a promotion gave up what the slave's log has and the master's
        lacks.
        """
        nodes = self._nodes
        for name, member in self._members.members.items():
            async with self._operator:
                reason = self._backend.refuses(name)
                is_its_turn = reason and name not in nodes.damaged and not member.busy
                leader = self._members.leader(member.group)
                if is_its_turn and nodes.state(name) == "running" and await self._is_sound(leader):
                    await nodes.replace_disk(name, reason)
                    await nodes.start(name)

    async def _is_sound(self, leader: str) -> bool:
        sample = await self._backend.observe(leader)
        is_whole = self._members.members[leader].joined and leader not in self._nodes.damaged
        is_whole = is_whole and not self._backend.reported(leader)
        return sample is not None and sample.is_master and is_whole

    async def _is_sick(self, name: str) -> bool:
        """Return whether a node reports damage, or is a damaged slave that follows no master: a log
        that differs from its master's is refused, without any other report."""
        if self._backend.reported(name) or name not in self._nodes.damaged:
            return bool(self._backend.reported(name))
        if self._members.is_leader(name) or name not in self._members.members:
            return False
        with trio.move_on_after(FOLLOWS_S):
            while True:
                sample = await self._backend.observe(name)
                if sample is not None and sample.is_following:
                    return False
                await trio.sleep(LOOK_S)
        fields = {"event": "replication.refused", "text": "it was damaged, and follows nobody"}
        self._backend.history.event(Function.NODE, name, "reported", fields)
        return True
