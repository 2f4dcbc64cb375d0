"""The operator of a test's cluster, who promotes a slave when a master stays down.

In classic mode there is no election. A test that kills its master and goes on sending needs an
operator, and a careful one: no slave is promoted while another slave, which may have more, is down,
and a master that may have lost the end of its log comes back as a slave.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.chaos.plan.step import parse_step

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage

LOOK_S: Final = 0.2


class Operator:
    """Watches the masters of one stage."""

    def __init__(self, stage: "Stage", after_s: float | None) -> None:
        """`after_s` is how long a master is down before a slave is promoted; None: never."""
        self.lock = trio.Lock()
        """Held while nodes are started, ended or promoted."""
        self._after_s = after_s
        self._stage = stage
        self._paused = 0

    async def run(self) -> None:
        if self._after_s is None:
            return
        down_since: dict[str, float] = {}
        while True:
            await trio.sleep(LOOK_S)
            if self._paused:
                continue
            for group, leader in self._stage.members.leaders().items():
                if self._stage.backend.state(leader) != "down":
                    down_since.pop(leader, None)
                    continue
                since = down_since.setdefault(leader, trio.current_time())
                if trio.current_time() - since >= self._after_s:
                    await self._promote(group, leader)

    async def replace_lost(self, name: str) -> None:
        """Promote another master before a node that may have lost messages comes back."""
        members = self._stage.members
        if self._after_s is not None and members.is_leader(name):
            await self._promote(members.members[name].group, name)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Promote nothing within the block: a fault phase's plan has promotions of its own."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    async def _promote(self, group: str, leader: str) -> None:
        """Make the longest slave the master, if all slaves run and can be compared."""
        stage = self._stage
        async with self.lock:
            still = stage.members.leader(group) == leader
            if not still or stage.backend.state(leader) != "down":
                return
            followers = stage.members.followers(group)
            if any(stage.backend.state(node) != "running" for node in followers):
                return
            suffix = f":{group}" if stage.plan.shape.groups > 1 else ""
            step = parse_step(f"at 0s promote follower:longest{suffix}")
            await stage.body_schedule.begin(step, by_hand=True)
