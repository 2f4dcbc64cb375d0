"""Settings that a running node takes over (25): those that are read at each use and move no data.

A `NodeConfig` is frozen, and who wants a setting asks its own one. `take_over` and `take_role` are
the only ones that write into it, fields of one change between two steps of the loop: every reader
sees all or none of them. So a key belongs into `CHANGEABLE` only if nobody keeps its value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from rocketbed.node.config.keys import KEYS
from rocketbed.node.config.node_config import NodeConfig, Setting, make_config
from rocketbed.node.config.unused import REFUSED

_NAMES = """
    autoCreateSubscriptionGroup autoCreateTopicEnable brokerPermission
    flushConsumerOffsetInterval litePullMessageEnable longPollingEnable rejectTransactionMessage
    shortPollingTimeMills slaveReadEnable startAcceptSendRequestTimeStamp traceTopicEnable
    cleanFileForciblyEnable cleanResourceInterval deleteFileBatchMax deleteWhen
    destroyMapedFileIntervalForcibly diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio fileReservedTime flushCommitLogLeastPages
    flushCommitLogThoroughInterval flushIntervalCommitLog flushIntervalConsumeQueue
    maxFilterMessageSize maxMessageSize maxMsgsNumBatch maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory offsetCheckInSlave osPageCacheBusyTimeOutMills rbDirtyMax
"""
CHANGEABLE: Final = frozenset(_NAMES.split())
BLACK_LIST: Final = frozenset({"brokerConfigPath", "configBlackList", "rocketmqHome"})
"""What RocketMQ's brokers do not let anybody change."""


def own_copy(config: NodeConfig) -> NodeConfig:
    """A node's own: what it takes over is nobody else's."""
    return replace(config, store=replace(config.store), values=dict(config.values))


def needs_restart(keys: Iterable[str]) -> str | None:
    """The first key that only a start can change."""
    return next((key for key in keys if key in {*KEYS, *REFUSED} - CHANGEABLE), None)


def checked(config: NodeConfig, changes: Mapping[str, str]) -> NodeConfig:
    """The settings with these changes. Raises `ConfigError`, as a start with them would."""
    old = [Setting(key, value, "settings") for key, value in config.values.items()]
    return make_config([*old, *(Setting(*row, "request") for row in changes.items())])[0]


def take_over(config: NodeConfig, changed: NodeConfig, keys: Iterable[str]) -> None:
    """Write the values of these keys, all of `CHANGEABLE`, from `changed` into `config`."""
    for name in keys:
        assert name in CHANGEABLE
        key = KEYS[name]
        source, target = (changed.store, config.store) if key.is_store else (changed, config)
        object.__setattr__(target, key.field, getattr(source, key.field))
        config.values[name] = changed.values[name]


def take_role(config: NodeConfig, *, leads: bool) -> None:
    """Make a replica of a group with failover the broker that it is now: 0, or its number."""
    assert config.replica, config
    object.__setattr__(config, "broker_role", "SYNC_MASTER" if leads else "SLAVE")
    object.__setattr__(config, "broker_id", 0 if leads else config.replica)
    object.__setattr__(config.store, "is_slave", not leads)
