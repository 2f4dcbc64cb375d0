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
"""Groups that exist from the start; those meant for reading only also get broadcasting."""

GROUP_LENGTH_MAX = 255


class Groups:
    """The table. Losing a group that was created automatically is harmless: it is created again."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._config = config
        self._file = ConfigFile(world, config.config_dir, "subscriptionGroup.json")
        self._saved = SavedTable(world, self._file, self._render)
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion()
        self.on_change: list[Callable[[str], None]] = []
        """Called with the name of a group that was created, changed or deleted."""
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
        """Return a group's configuration, creating it if that is allowed; None otherwise."""
        config = self._table.get(group)
        if config is None and self._config.auto_create_group and 0 < len(group) <= GROUP_LENGTH_MAX:
            config = SubscriptionGroupConfig(group_name=group)
            self.put(config)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Add or change a group; durable after `save`."""
        if self._table.get(config.group_name) != config:
            self._table[config.group_name] = config
            self._changed(config.group_name)

    def delete(self, group: str) -> bool:
        """Delete a group; durable after `save`. False if it does not exist."""
        if self._table.pop(group, None) is None:
            return False
        self._forbidden.pop(group, None)
        self._changed(group)
        return True

    def apply(self, rows: Mapping[str, SubscriptionGroupConfig | None]) -> None:
        """Apply changes of another broker's table; None is a group that it deleted."""
        for name, row in rows.items():
            if row is None:
                self._table.pop(name, None)
            else:
                self._table[name] = row
            self._changed(name)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """True if a group may not read a topic (353 sets the read bit of the forbidden table)."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & PERM_READ)

    def body(self) -> SubscriptionGroupTable:
        """Return the table as 201 carries it."""
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
