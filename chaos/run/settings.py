"""Settings of running nodes that an operator changes under load, and what the nodes then report.

A change lasts until its node's next start, as the testbed rewrites the configuration file.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.run.load import ClientFailure
from rocketbed.chaos.run.operating import LOOK_S, Operating
from rocketbed.client.admin import Admin

VALUES: Final = {
    "maxTransferCountOnMessageInMemory": ("8", "16"),
    "maxTransferBytesOnMessageInMemory": ("16384", "65536"),
    "flushConsumerOffsetInterval": ("500", "2000"),
    "flushIntervalCommitLog": ("20", "200"),
    "brokerPermission": ("4",),
}
"""Setting -> values that it may be changed to. No promise depends on any of them."""
CLOSED: Final = "brokerPermission"
OPEN: Final = "6"
CLOSED_S: Final = 2.0
"""Longest time for which a node accepts no sends."""


@dataclass(slots=True)
class SettingChanges(Operating):
    """The operator's work on settings."""

    NAME = "settings"
    WHAT = "a change of a setting"
    _changed: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.plan.producers.settings

    async def change(self, random: Random) -> None:
        """Change a setting of one node; one of them closes it to sends for a while."""
        node, key = random.choice(self.members.nodes), random.choice(list(VALUES))
        self._changed[node, key] = None
        await self._change(node, key, random.choice(VALUES[key]))
        if key == CLOSED:
            await self.pause(CLOSED_S * random.random())
            await self._change(node, key, OPEN)

    async def end(self) -> None:
        """Record the final value of each changed setting."""
        for node, key in self._changed:
            await self._change(node, key, None)

    async def _change(self, node: str, key: str, value: str | None) -> None:
        """Change a setting of a node and record the values that it reports before and after. With
        no value only record what it reports."""
        async with Admin(self.backend.world, nameservers=self.backend.nameservers()) as admin:
            while not (node in self.without and self.backend.state(node) == "down"):
                with suppress(*ClientFailure):
                    await self._try_to_change(admin, node, key, value)
                    return
                await trio.sleep(LOOK_S)

    async def _try_to_change(self, admin: Admin, node: str, key: str, value: str | None) -> None:
        """Do so once. Raises `ClientFailure`."""
        history, (host, port) = self.backend.history, self.backend.address(node)
        address = f"{host}:{port}"

        async def look() -> None:
            began_ns = history.now_ns()
            current = (await admin.broker_config(address)).get(key)
            fields = {"key": key, "value": current, "began_ns": began_ns}
            history.event(Function.NODE, node, "setting_shown", fields)

        await look()
        if value is not None:
            fields = {"key": key, "value": value, "began_ns": history.now_ns()}
            history.event(Function.NODE, node, "setting_asked", fields)
            await admin.change_broker_config(address, {key: value})
            fields = {"key": key, "value": value}
            history.event(Function.NODE, node, "setting_changed", fields)
            await look()
