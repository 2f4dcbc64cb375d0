"""Settings that a running node takes over (25): those that are read at each use and move no data.

A `NodeConfig` is frozen, and each part reads settings from the node's own copy. `take_over` and
`take_role` alone write into it, all fields of a change between two steps of the loop: every reader
sees all or none of them. So a key belongs in `CHANGEABLE` only if no part keeps a copy of its
value.
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
"""Keys that RocketMQ's brokers never let a client change."""


def own_copy(config: NodeConfig) -> NodeConfig:
    """Return a copy for one node, whose changes affect no other node."""
    return replace(config, store=replace(config.store), values=dict(config.values))


def needs_restart(keys: Iterable[str]) -> str | None:
    """Return the first key that only a start can change."""
    return next((key for key in keys if key in {*KEYS, *REFUSED} - CHANGEABLE), None)


def checked(config: NodeConfig, changes: Mapping[str, str]) -> NodeConfig:
    """Return the settings with these changes. Raises `ConfigError`, as a start with them would."""
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
    """Turn a replica of a group with failover into the broker that it is now: 0, or its number."""
    assert config.replica, config
    object.__setattr__(config, "broker_role", "SYNC_MASTER" if leads else "SLAVE")
    object.__setattr__(config, "broker_id", 0 if leads else config.replica)
    object.__setattr__(config.store, "is_slave", not leads)
