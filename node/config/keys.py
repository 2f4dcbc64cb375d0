"""RocketMQ's configuration keys that have an effect here, with the field and parser of each.

Our own begin with `rb`. Keys without an effect are in `node/config/unused.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from rocketbed.node.store.config import parse_delay_levels
from rocketbed.remoting.client import check_host, parse_address
from rocketbed.world.api import Address

Parse = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Key:
    field: str
    parse: Parse
    """Raises `ValueError` that says what is wrong with the text."""
    is_store: bool = False


def _text(text: str) -> str:
    return text


def _name(text: str) -> str:
    if not text or any(character in text for character in " ;,@\t"):
        raise ValueError("must be a name without spaces, commas, semicolons or @")
    return text


def _host(text: str) -> str:
    check_host(text)
    return text


def _integer(text: str, *, low: int = 0, high: int = 2**63 - 1) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError("must be an integer") from None
    if not low <= number <= high:
        raise ValueError(f"must be between {low} and {high}")
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _diverged(text: str) -> str:
    word, _, number = text.rpartition(":")
    if number.isascii() and number.isdigit() and word in ("", "cut"):
        return text
    return _one_of(text, allowed=("refuse", "cut"))


def _topics_at(text: str) -> tuple[tuple[str, int], ...]:
    topics = []
    for part in filter(str.strip, text.split(";")):
        topic, _, offset = part.strip().rpartition(":")
        if not topic:
            raise ValueError(f"{part.strip()!r} is not TOPIC:OFFSET")
        topics.append((topic, _integer(offset)))
    return tuple(topics)


def _one_directory(text: str) -> str:
    if "," in text:
        raise ValueError("one directory only: a log that is spread over several is not read here")
    return text


def _one_of(text: str, *, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ValueError(f"must be one of {', '.join(allowed)}")
    return text


def _is_sync_flush(text: str) -> bool:
    return _one_of(text, allowed=("ASYNC_FLUSH", "SYNC_FLUSH")) == "SYNC_FLUSH"


def _hours_as_ms(text: str) -> int:
    return _integer(text) * 3_600_000


def _hours(text: str) -> tuple[int, ...]:
    parts = [part for part in text.replace(",", ";").split(";") if part.strip()]
    if not parts:
        raise ValueError("must be hours from 00 to 23, separated by ;")
    return tuple(_integer(part.strip(), high=23) for part in parts)


def _delays(text: str) -> str:
    parse_delay_levels(text)
    return text


def _address(text: str) -> str:
    """Check one address; empty means none."""
    if text and len(_addresses(text)) != 1:
        raise ValueError("must be one address, host:port")
    return text


def _addresses(text: str) -> tuple[Address, ...]:
    addresses = []
    for part in text.replace(",", ";").split(";"):
        if not part.strip():
            continue
        host, port = parse_address(part)
        addresses.append((host, _integer(str(port), low=1, high=65535)))
    return tuple(addresses)


_port = partial(_integer, high=65535)
_positive = partial(_integer, low=1)
_percent = partial(_integer, high=100)

_NODE: Final[dict[str, tuple[str, Parse]]] = {
    "brokerName": ("broker_name", _name),
    "brokerClusterName": ("cluster_name", _name),
    "brokerId": ("broker_id", _integer),
    "brokerRole": (
        "broker_role",
        partial(_one_of, allowed=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")),
    ),
    "rbReplica": ("replica", partial(_integer, high=63)),
    "rbReplicas": ("replicas", partial(_integer, low=1, high=63)),
    "rbCatchUpRate": ("catch_up_rate", _integer),
    "namesrvAddr": ("nameservers", _addresses),
    "brokerIP1": ("ip1", _host),
    "brokerIP2": ("ip2", _host),
    "bindAddress": ("bind_address", _host),
    "listenPort": ("listen_port", _port),
    "haListenPort": ("ha_listen_port", _port),
    "haMasterAddress": ("ha_master_address", _address),
    "inSyncReplicas": ("in_sync_replicas", _positive),
    "slaveTimeout": ("slave_timeout_ms", _positive),
    "haSendHeartbeatInterval": ("ha_heartbeat_ms", _positive),
    "haHousekeepingInterval": ("ha_housekeeping_ms", _positive),
    "haTransferBatchSize": ("ha_batch_bytes", _positive),
    "haMaxGapNotInSync": ("ha_gap_max", _positive),
    "rbClassicFresh": ("classic_fresh", partial(_one_of, allowed=("first", "last_file"))),
    "rbDiverged": ("diverged", _diverged),
    "rbMaxConnections": ("connections_max", _integer),
    "rbMaxHaConnections": ("ha_connections_max", _integer),
    "rbMetadataSync": ("metadata_sync_ms", _positive),
    "registerNameServerPeriod": ("register_period_ms", _positive),
    "registerBrokerTimeoutMills": ("register_timeout_ms", _positive),
    "brokerPermission": ("broker_permission", partial(_integer, high=7)),
    "autoCreateTopicEnable": ("auto_create_topic", _boolean),
    "autoCreateSubscriptionGroup": ("auto_create_group", _boolean),
    "defaultTopicQueueNums": ("default_topic_queues", _positive),
    "traceTopicEnable": ("trace_topic", _boolean),
    "rejectTransactionMessage": ("reject_transactions", _boolean),
    "startAcceptSendRequestTimeStamp": ("start_accept_sends_ms", _integer),
    "longPollingEnable": ("long_polling", _boolean),
    "shortPollingTimeMills": ("short_polling_ms", _positive),
    "rbHeldPullsMax": ("long_polls_max", _integer),
    "litePullMessageEnable": ("lite_pull", _boolean),
    "slaveReadEnable": ("slave_reads", _boolean),
    "flushConsumerOffsetInterval": ("flush_offsets_ms", _positive),
}

_STORE: Final[dict[str, tuple[str, Parse]]] = {
    "storePathRootDir": ("root", _text),
    "storePathCommitLog": ("commitlog_dir", _one_directory),
    "mappedFileSizeCommitLog": ("segment_size", _positive),
    "mappedFileSizeConsumeQueue": ("queue_segment_size", _positive),
    "mapperFileSizeBatchConsumeQueue": ("batch_queue_segment_size", _positive),
    "maxHashSlotNum": ("index_slots", _positive),
    "maxIndexNum": ("index_entries", _positive),
    "rbNative": ("native", _boolean),
    "messageIndexEnable": ("index_enabled", _boolean),
    "flushDiskType": ("sync_flush", _is_sync_flush),
    "flushIntervalCommitLog": ("flush_interval_ms", _positive),
    "flushCommitLogLeastPages": ("flush_least_pages", _integer),
    "flushCommitLogThoroughInterval": ("flush_thorough_interval_ms", _positive),
    "flushIntervalConsumeQueue": ("mark_interval_ms", _positive),
    "syncFlushTimeout": ("sync_flush_timeout_ms", _positive),
    "maxMessageSize": ("max_message_size", _positive),
    "enabledAppendPropCRC": ("append_property_crc", _boolean),
    "osPageCacheBusyTimeOutMills": ("busy_timeout_ms", _positive),
    "cleanResourceInterval": ("clean_interval_ms", _positive),
    "fileReservedTime": ("reserved_ms", _hours_as_ms),
    "deleteWhen": ("delete_when", _hours),
    "deleteFileBatchMax": ("delete_batch_max", _positive),
    "destroyMapedFileIntervalForcibly": ("hanged_file_ms", _positive),
    "diskMaxUsedSpaceRatio": ("disk_max_used_percent", _percent),
    "diskSpaceCleanForciblyRatio": ("disk_clean_forcibly_percent", _percent),
    "diskSpaceWarningLevelRatio": ("disk_warning_percent", _percent),
    "cleanFileForciblyEnable": ("clean_forcibly_enabled", _boolean),
    "maxTransferBytesOnMessageInMemory": ("transfer_bytes_memory", _positive),
    "maxTransferCountOnMessageInMemory": ("transfer_count_memory", _positive),
    "maxTransferBytesOnMessageInDisk": ("transfer_bytes_disk", _positive),
    "maxTransferCountOnMessageInDisk": ("transfer_count_disk", _positive),
    "accessMessageInMemoryMaxRatio": ("memory_ratio_percent", _percent),
    "maxFilterMessageSize": ("max_filter_bytes", _positive),
    "maxMsgsNumBatch": ("max_query_messages", _positive),
    "messageDelayLevel": ("delay_levels", _delays),
    "offsetCheckInSlave": ("offset_check_in_slave", _boolean),
    "rbScrubRate": ("scrub_rate", _integer),
    "rbDirtyMax": ("dirty_max", _positive),
    "rbDispatchRing": ("dispatch_ring", _positive),
    "rbTrustPageCache": ("trust_page_cache", _boolean),
    "rbAcceptCut": ("accept_cut_at", partial(_integer, low=-1)),
    "rbAcceptStart": ("accept_start_at", partial(_integer, low=-1)),
    "rbFillHole": ("fill_hole_at", partial(_integer, low=-1)),
    "rbTopicDeleted": ("topics_deleted", _topics_at),
}

KEYS: Final[dict[str, Key]] = {
    **{name: Key(attribute, parse) for name, (attribute, parse) in _NODE.items()},
    **{name: Key(attribute, parse, True) for name, (attribute, parse) in _STORE.items()},
}
"""All keys that have an effect."""
