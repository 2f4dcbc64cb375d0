"""Bodies that clients, brokers and nameservers exchange (wire.md 2.7, 3.2, 3.6, 6.2).

Names in JSON are RocketMQ's; the attributes are the same words with underscores. Tables keep the
order in which they were filled.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from rocketbed.wire.body_fields import Body

QUEUES_MAX = 65_536
"""Most queues of one topic on one broker, each of which costs a file; more counts as a damaged
number."""
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


def _name(name: str) -> dict[str, str]:
    return {"name": name}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MessageQueue(Body):
    """A queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion(Body):
    """Version of a table; equal only if all three are (wire.md 3.7)."""

    counter: int = 0
    state_version: int = 0
    """Epoch of the master that changed it; 0 outside failover mode."""
    timestamp: int = 0
    """Wall clock of the last change, milliseconds."""

    def next(self, now_ms: int, state_version: int = 0) -> "DataVersion":
        """Return the version after one more change."""
        return replace(
            self, counter=self.counter + 1, state_version=state_version, timestamp=now_ms
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(Body):
    """A topic as one broker has it."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def queue_nums(self) -> int:
        """Queues that are written to or read: a topic that shrinks is read longer than written."""
        return max(self.read_queue_nums, self.write_queue_nums)


@dataclass(slots=True, kw_only=True)
class TopicConfigTable(Body):
    """Topics of a broker: `TopicConfigAndMappingSerializeWrapper`, answer to 21."""

    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] | None = field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] | None = field(default_factory=dict)
    rb_deleted: dict[str, int] | None = None
    """Deleted topics, each with the end of the log at that moment: rocketbed's own, for its
    slaves."""


@dataclass(slots=True, kw_only=True)
class TopicConfigList(Body):
    """Body of 18."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RegisterBrokerBody(Body):
    """Body of 103, uncompressed."""

    filter_server_list: list[str] = field(default_factory=list)
    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)


@dataclass(slots=True, kw_only=True)
class KvTable(Body):
    """A table of texts: order topics in the answer to 103, 219, runtime info (28)."""

    table: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TopicList(Body):
    """Answer to 206, 224, 304, 305, 343."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData(Body):
    """A topic's queues on one broker, as routed."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerData(Body):
    """The members of one broker name; id 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


@dataclass(slots=True, kw_only=True)
class TopicRouteData(Body):
    """Answer to 105 (wire.md 3.6)."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, Any] = field(default_factory=dict)
    queue_datas: list[QueueData] = field(default_factory=list)
    order_topic_conf: str | None = None


@dataclass(slots=True, kw_only=True)
class ClusterInfo(Body):
    """Answer to 106."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class BrokerMemberGroup(Body):
    """The members of one broker name, inside the answer to 901."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class MemberGroupBody(Body):
    """Answer to 901."""

    broker_member_group: BrokerMemberGroup = field(default_factory=BrokerMemberGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData(Body):
    """Subscription of a consumer group to a topic."""

    topic: str
    sub_string: str = "*"
    expression_type: str = "TAG"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    """Java hashes of the tags, 32-bit signed."""
    sub_version: int = 0
    """Version in milliseconds; the newer one replaces the older."""
    class_filter_mode: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumerData(Body):
    """A consumer group inside a heartbeat."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@dataclass(slots=True, kw_only=True)
class ProducerData(Body):
    """A producer group inside a heartbeat."""

    group_name: str


@dataclass(slots=True, kw_only=True)
class HeartbeatData(Body):
    """Body of 34 (wire.md 6.2)."""

    client_id: str = field(metadata=_name("clientID"))
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    producer_data_set: list[ProducerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@dataclass(slots=True, kw_only=True)
class CheckClientBody(Body):
    """Body of 46."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerIdList(Body):
    """Answer to 38."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class LockQueues(Body):
    """Body of 41 and 42."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False
    """True if replicas are not to be asked too; by default they never are."""


@dataclass(slots=True, kw_only=True)
class LockedQueues(Body):
    """Answer to 41."""

    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list, metadata=_name("lockOKMQSet"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig(Body):
    """A consumer group as one broker has it."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SubscriptionGroupTable(Body):
    """Consumer groups of a broker: `SubscriptionGroupWrapper`, answer to 201."""

    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SubscriptionGroupList(Body):
    """Body of 225."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ConsumerOffsetTable(Body):
    """`topic@group` to queue to next offset: answer to 43, `consumerOffset.json`."""

    data_version: DataVersion = field(default_factory=DataVersion)
    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DelayOffsetTable(Body):
    """Delay level to next queue offset: answer to 45, `delayOffset.json`."""

    data_version: DataVersion = field(default_factory=DataVersion)
    offset_table: dict[int, int] = field(default_factory=dict)
    rb_damaged: dict[int, list[int]] | None = None
    """Rocketbed's own, if there are any: queue offsets, below those of the table, of due messages
    that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaConnectionInfo(Body):
    """A slave inside `HaRuntimeInfo`."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(slots=True, kw_only=True)
class HaClientRuntimeInfo(Body):
    """A slave's own side inside `HaRuntimeInfo`."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    is_activated: bool = False


@dataclass(slots=True, kw_only=True)
class HaRuntimeInfo(Body):
    """Answer to 907."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HaConnectionInfo] = field(default_factory=list)
    ha_client_runtime_info: HaClientRuntimeInfo = field(default_factory=HaClientRuntimeInfo)
