"""Settings of running nodes that an operator changes under load, and what nodes then say they are.

A change counts until its node starts again: the testbed writes its configuration anew.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from rocketbed.chaos.history import Function
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.trial.api import Backend
from rocketbed.chaos.trial.load import ClientFailure
from rocketbed.chaos.trial.members import Members
from rocketbed.client.admin import Admin

VALUES: Final = {
    "maxTransferCountOnMessageInMemory": ("8", "16"),
    "maxTransferBytesOnMessageInMemory": ("16384", "65536"),
    "flushConsumerOffsetInterval": ("500", "2000"),
    "flushIntervalCommitLog": ("20", "200"),
    "brokerPermission": ("4",),
}
"""What may become what: nothing that a promise goes by."""
CLOSED: Final = "brokerPermission"
OPEN: Final = "6"
CLOSED_S: Final = 2.0
"""Longest time for which nobody may send to a node."""
LOOK_S: Final = 0.5
REST_S: Final = 60.0
"""Longest time for what is left to do once the cluster is healed."""


@dataclass(slots=True)
class SettingChanges:
    """The operator's work on settings, one change after the other."""

    plan: Plan
    backend: Backend
    members: Members
    left: int = 0
    without: frozenset[str] = frozenset()
    """Nodes that stay away: what is to be done to them is not done."""
    _over: trio.Event = field(default_factory=trio.Event)
    _done: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.left = self.plan.producers.settings

    async def run(self) -> None:
        """Make changes in the storm, and ask each node in the end for what it was told. What is
        not begun when the faults are over is left out, but for the first."""
        random = Random(f"{self.plan.seed}/settings")
        pause_s = self.plan.storm_s / (self.left + 1)
        told: dict[tuple[str, str], None] = {}
        while self.left:
            with trio.move_on_after(random.uniform(0.1, 0.9) * pause_s):
                await self._over.wait()
            if self._over.is_set() and told:
                break
            node, key = random.choice(self.members.nodes), random.choice(list(VALUES))
            told[node, key] = None
            await self._change(node, key, random.choice(VALUES[key]))
            if key == CLOSED:
                with trio.move_on_after(CLOSED_S * random.random()):
                    await self._over.wait()
                await self._change(node, key, OPEN)
            self.left -= 1
        for node, key in told:
            await self._change(node, key, None)
        self._done.set()

    async def finish(self, without: frozenset[str]) -> str:
        """Wait for all of it when nothing is broken any more; what is not done in time."""
        self.without = without
        self._over.set()
        with trio.move_on_after(REST_S):
            await self._done.wait()
        return "" if self._done.is_set() else "a change of a setting"

    async def _change(self, node: str, key: str, value: str | None) -> None:
        """Have a node change a setting, with rows of what it said before and after; without a value
        one row of what it says."""
        async with Admin(self.backend.world, nameservers=self.backend.nameservers()) as admin:
            while not (node in self.without and self.backend.state(node) == "down"):
                with suppress(*ClientFailure):
                    await self._try_to_change(admin, node, key, value)
                    return
                await trio.sleep(LOOK_S)

    async def _try_to_change(self, admin: Admin, node: str, key: str, value: str | None) -> None:
        """Raises `ClientFailure`."""
        history, (host, port) = self.backend.history, self.backend.address(node)
        address = f"{host}:{port}"

        async def look() -> None:
            began_ns = history.now_ns()
            shown = (await admin.broker_config(address)).get(key)
            fields = {"key": key, "value": shown, "began_ns": began_ns}
            history.event(Function.NODE, node, "setting_shown", fields)

        await look()
        if value is not None:
            fields = {"key": key, "value": value, "began_ns": history.now_ns()}
            history.event(Function.NODE, node, "setting_asked", fields)
            await admin.change_broker_config(address, {key: value})
            fields = {"key": key, "value": value}
            history.event(Function.NODE, node, "setting_changed", fields)
            await look()
