"""Bodies that tools request from brokers (wire.md 2.7, broker.md 8.2)."""

from dataclasses import dataclass, field

from rocketbed.wire.bodies import MessageQueue, SubscriptionData
from rocketbed.wire.body_fields import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset(Body):
    """A queue inside a `TopicStatsTable`."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0
    """Store time of the last message, milliseconds; 0 without one."""


@dataclass(slots=True, kw_only=True)
class TopicStatsTable(Body):
    """Answer to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0
    """Messages a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset(Body):
    """A queue inside `ConsumeStats`."""

    broker_offset: int = 0
    """End of the queue."""
    consumer_offset: int = 0
    """Offset that the group has committed; 0 without one."""
    pull_offset: int = 0
    """Offset after the messages that its members have pulled from this broker."""
    last_timestamp: int = 0
    """Store time of the last message that the group has committed, milliseconds."""


@dataclass(slots=True, kw_only=True)
class ConsumeStats(Body):
    """Answer to 208."""

    offset_table: dict[MessageQueue, GroupOffset] = field(default_factory=dict)
    consume_tps: float = 0.0
    """Messages a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection(Body):
    """A connected member of a group."""

    client_id: str
    client_addr: str
    """`ip:port`."""
    language: str
    version: int


@dataclass(slots=True, kw_only=True)
class ConsumerConnection(Body):
    """Answer to 203."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(slots=True, kw_only=True)
class ProducerConnection(Body):
    """Answer to 204."""

    connection_set: list[ClientConnection] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GroupList(Body):
    """Answer to 300."""

    group_list: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class QueueOffsets(Body):
    """Answer to 222, and body of 220."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ConsumerStatus(Body):
    """Answer to 221: offsets of one member."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo(Body):
    """A queue inside `ConsumerRunningInfo`."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    """Messages that were handed out and are not finished."""
    locked: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumerRunningInfo(Body):
    """Answer to 307."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, QueueInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMode(Body):
    """Way in which a group gets a topic: body of 401, and an entry of `messageRequestMode.json`."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    """PULL or POP."""
    pop_share_queue_num: int = 0
    """POP: number of the next members that share a member's queues."""


@dataclass(slots=True, kw_only=True)
class RequestModeTable(Body):
    """Modes by topic and group: answer to 402, `messageRequestMode.json`."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignment(Body):
    """Body of 400."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = ""
    message_model: str = "CLUSTERING"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAssignment(Body):
    """A queue of a member, and the way it gets it."""

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


@dataclass(slots=True, kw_only=True)
class QueueAssignments(Body):
    """Answer to 400; None means that the member keeps its queues."""

    message_queue_assignments: list[QueueAssignment] | None = None
