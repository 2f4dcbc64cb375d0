"""The settings of a running broker: read (26) and changed (25; wire.md 2.4, broker.md 8.2)."""

import posixpath
from collections.abc import Mapping
from typing import Final

import trio

from rocketbed.node.broker.config_file import ConfigFile
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.changes import (
    BLACK_LIST,
    CHANGEABLE,
    checked,
    needs_restart,
    take_over,
)
from rocketbed.node.config.keys import KEYS
from rocketbed.node.config.node_config import ConfigError, NodeConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import DataVersion
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.headers_admin import BrokerConfigResponse
from rocketbed.wire.properties_text import (
    decode_file,
    encode_file,
    parse_properties,
    render_properties,
    with_properties,
)
from rocketbed.world.api import World

OF_TOPICS: Final = frozenset({"autoCreateTopicEnable", "brokerPermission", "traceTopicEnable"})
"""Keys that affect the table of topics, or its registration at nameservers."""


class Settings:
    """Answers 25 and 26."""

    def __init__(
        self, world: World, config: NodeConfig, store: MessageStore, topics: Topics
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._version = DataVersion(timestamp=world.clock.wall_ms())
        self._lock = trio.Lock()

    def show(self, command: Command, connection: Connection) -> Command:
        """26: the settings as properties text, by RocketMQ's names."""
        text = render_properties(self._values())
        fields = BrokerConfigResponse(version=self._version.encode().decode()).encode()
        return answer(command, ResponseCode.SUCCESS, None, fields, text.encode())

    def _values(self) -> dict[str, str]:
        """Return the settings that were set, and the defaults of those that have the same form."""
        config = self._config
        settings: dict[str, str] = {}
        for name, key in KEYS.items():
            if name in config.values:
                settings[name] = config.values[name]
                continue
            value = getattr(config.store if key.is_store else config, key.field, None)
            if isinstance(value, bool) and key.field != "sync_flush":
                settings[name] = "true" if value else "false"
            elif isinstance(value, int | str) and key.field not in ("sync_flush", "reserved_ms"):
                settings[name] = str(value)
        flush = "SYNC_FLUSH" if config.store.sync_flush else "ASYNC_FLUSH"
        settings.setdefault("flushDiskType", flush)
        settings.setdefault("fileReservedTime", str(config.store.reserved_ms // 3_600_000))
        return settings

    async def update(self, command: Command, connection: Connection) -> Command:
        """25: apply settings, all or none, and write them into the file that they are from.

        If they are in effect but could not be written, the remark says so.
        """
        try:
            rows = parse_properties(command.body.decode())
        except ValueError as exc:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"string2Properties error: {exc}")
        values = {key: value.strip() for _, key, value in rows}
        if not BLACK_LIST.isdisjoint(values):
            remark = "Can not update config in black list."
            return answer(command, ResponseCode.NO_PERMISSION, remark)
        fixed = needs_restart(values)
        if fixed is not None:
            remark = f"{fixed} cannot be changed while the broker runs: it needs a restart"
            return answer(command, ResponseCode.NO_PERMISSION, remark)
        changes = {key: value for key, value in values.items() if key in CHANGEABLE}
        try:
            changed = checked(self._config, changes)
        except ConfigError as exc:
            return answer(command, ResponseCode.INVALID_PARAMETER, str(exc))
        for key in [key for key in values if key not in CHANGEABLE]:
            self._world.log.warning("config.key_without_effect", key=key)
        if not changes:
            return answer(command)
        take_over(self._config, changed, changes)
        self._store.log.tail.limit(self._config.store)
        if not OF_TOPICS.isdisjoint(changes):
            self._topics.follow_settings()
        self._version = self._version.next(self._world.clock.wall_ms())
        self._world.log.info("config.changed", peer=connection.remote_text, **changes)
        reason = await self._keep(changes)
        if reason is None:
            return answer(command)
        self._world.log.warning("config.change_not_kept", reason=reason)
        return answer(command, ResponseCode.SUCCESS, f"in effect until the next start: {reason}")

    async def _keep(self, changes: Mapping[str, str]) -> str | None:
        """Write changes into the file. Return why the next start will not find them, if so."""
        path = self._config.path
        if not path:
            return "the broker was started without a configuration file"
        async with self._lock:
            file = ConfigFile(self._world, *posixpath.split(path))
            try:
                text = decode_file(file.read_bytes())
                await file.replace(encode_file(with_properties(text, changes)))
            except (OSError, ValueError) as exc:
                return f"{path} cannot be written: {exc}"
        pinned = sorted(self._config.pinned.intersection(changes))
        return f"--set gives {', '.join(pinned)}" if pinned else None
