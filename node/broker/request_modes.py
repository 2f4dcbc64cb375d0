"""Modes by which groups get their messages, by topic: `messageRequestMode.json` (401, broker.md
1.9).

Only pulls are served here. A RocketMQ broker's entries for POP stay in the file, for its return,
and such a group is told to pull.
"""

from collections.abc import Callable
from typing import Any, Final

import trio

from rocketbed.node.broker.config_file import ConfigFile, SavedTable, Settling
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.wire.bodies_admin import RequestMode, RequestModeTable
from rocketbed.world.api import World

FILE: Final = "messageRequestMode.json"
PULL: Final = "PULL"
POP: Final = "POP"


class RequestModes:
    """The table."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._file = ConfigFile(world, config.config_dir, FILE)
        self._saved = SavedTable(world, self._file, self._render)
        self._table: dict[str, dict[str, RequestMode]] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with `topic@group`."""
        self.settling: Settling = lambda: trio.lowlevel.checkpoint
        """As `Topics.settling`."""

    def load(self) -> None:
        """Read the file. Raises `ConfigFileError`."""
        table = self._file.load(RequestModeTable.from_json) or RequestModeTable()
        self._table = table.message_request_mode_map

    def warn_of_pop(self) -> None:
        """Log the groups that are told to pull although their entry says POP."""
        for topic, groups in self._table.items():
            for group, entry in groups.items():
                if entry.mode == POP:
                    self._world.log.warning("config.pop_is_pulled", topic=topic, group=group)

    async def save(self) -> None:
        """Make every change durable. Raises `ConfigFileError`."""
        settled = self.settling()
        await self._saved.save()
        await settled()

    async def run(self) -> None:
        """Write changes as they come, until cancelled."""
        await self._saved.run()

    def put(self, entry: RequestMode) -> None:
        """Set one group's mode; durable after `save`."""
        groups = self._table.setdefault(entry.topic, {})
        if groups.get(entry.consumer_group) != entry:
            groups[entry.consumer_group] = entry
            self._saved.touch()
            for callback in self.on_change:
                callback(f"{entry.topic}@{entry.consumer_group}")

    def row(self, key: str) -> Any:
        """Return the entry of `topic@group` as JSON."""
        topic, _, group = key.rpartition("@")
        return self._table[topic][group].to_json()

    def body(self) -> RequestModeTable:
        """Return the table as 402 carries it."""
        return RequestModeTable(message_request_mode_map=self._table)

    def replace_all(self, table: RequestModeTable) -> None:
        """Replace the whole table with a master's; durable after `save`."""
        if self._table != table.message_request_mode_map:
            self._table = table.message_request_mode_map
            self._saved.touch()

    def _render(self) -> dict[str, Any]:
        return self.body().to_json()
