"""Consumer groups of a broker: `subscriptionGroup.json` (wire.md 4.7, 6.2)."""

from collections.abc import Callable, Mapping
from typing import Any

import trio

from rocketbed.node.broker.config_file import ConfigFile, SavedTable, Settling
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.wire.bodies import (
    PERM_READ,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rocketbed.world.api import World

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Made at the start; those that exist for reading only are made with broadcasting on as well."""

GROUP_LENGTH_MAX = 255


class Groups:
    """The table. Losing a group that was made by itself is harmless: it is made again."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._config = config
        self._file = ConfigFile(world, config.config_dir, "subscriptionGroup.json")
        self._saved = SavedTable(world, self._file, self._render)
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion()
        self.on_change: list[Callable[[str], None]] = []
        """Called with the name of a group that was made, changed or forgotten."""
        self.settling: Settling = lambda: trio.lowlevel.checkpoint
        """As that of `Topics`."""

    def load(self) -> None:
        """Read the file and add the system's groups. Raises `ConfigFileError`."""
        self._take(self._file.load(SubscriptionGroupTable.from_json) or SubscriptionGroupTable())
        for name in SYSTEM_GROUPS:
            if name not in self._table:
                self._table[name] = SubscriptionGroupConfig(group_name=name)
                self._saved.touch()

    async def save(self) -> None:
        """Make every change durable. Raises `ConfigFileError`."""
        settled = self.settling()
        await self._saved.save()
        await settled()

    async def run(self) -> None:
        """Write changes as they come, until cancelled."""
        await self._saved.run()

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._table.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """A group's configuration, made if that is allowed; None otherwise."""
        found = self._table.get(group)
        if found is None and self._config.auto_create_group and 0 < len(group) <= GROUP_LENGTH_MAX:
            found = SubscriptionGroupConfig(group_name=group)
            self.put(found)
        return found

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Make or change a group; durable after `save`."""
        if self._table.get(config.group_name) != config:
            self._table[config.group_name] = config
            self._changed(config.group_name)

    def delete(self, group: str) -> bool:
        """Forget a group; durable after `save`. False when there is none."""
        if self._table.pop(group, None) is None:
            return False
        self._forbidden.pop(group, None)
        self._changed(group)
        return True

    def apply(self, rows: Mapping[str, SubscriptionGroupConfig | None]) -> None:
        """Take changes of another broker's table over; None is a group that it forgot."""
        for name, row in rows.items():
            if row is None:
                self._table.pop(name, None)
            else:
                self._table[name] = row
            self._changed(name)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Whether a group may not read a topic (353 sets the read bit of the forbidden table)."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & PERM_READ)

    def body(self) -> SubscriptionGroupTable:
        """The table as 201 carries it."""
        return SubscriptionGroupTable(
            data_version=self.version,
            forbidden_table=self._forbidden,
            subscription_group_table=dict(self._table),
        )

    def replace_all(self, table: SubscriptionGroupTable) -> None:
        """Take a master's table over whole (a slave's metadata sync)."""
        self._take(table)
        self._saved.touch()

    def _take(self, table: SubscriptionGroupTable) -> None:
        self._table = dict(table.subscription_group_table)
        self._forbidden = table.forbidden_table
        self.version = table.data_version

    def _changed(self, name: str) -> None:
        self._bump()
        for callback in self.on_change:
            callback(name)

    def _bump(self) -> None:
        self.version = self.version.next(self._world.clock.wall_ms())
        self._saved.touch()

    def _render(self) -> dict[str, Any]:
        return self.body().to_json()
