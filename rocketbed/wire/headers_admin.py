"""Headers of administration, nameserver and broker-to-broker requests (wire.md 2.3, 2.4, 3, 7).

As in `headers`: RocketMQ's names, and the order of fields is part of the msgpack form.
"""

from dataclasses import dataclass, field

from rocketbed.wire.encoding.fields import Header, Int, Long


def _named(name: str) -> dict[str, str]:
    return {"name": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequest(Header):
    """17."""

    topic: str
    defaultTopic: str
    readQueueNums: Int
    writeQueueNums: Int
    perm: Int
    topicFilterType: str
    topicSysFlag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest(Header):
    """202, 215, 217, 300, 351: a topic."""

    topic: str
    lo: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllTopicConfigRequest(Header):
    """21: topics, all or a page of them."""

    topicSeq: Int | None = None
    dataVersion: str | None = None
    maxTopicNum: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllTopicConfigResponse(Header):
    """Answer to a paged 21."""

    totalTopicNum: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGroupConfigRequest(Header):
    """201: subscription groups, all or a page of them."""

    groupSeq: Int | None = None
    dataVersion: str | None = None
    maxGroupNum: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGroupConfigResponse(Header):
    """Answer to a paged 201."""

    totalGroupNum: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigResponse(Header):
    """Answer to 26."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupRequest(Header):
    """207."""

    groupName: str
    cleanOffset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(Header):
    """343, 352: a consumer group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerGroupRequest(Header):
    """204."""

    producerGroup: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatsRequest(Header):
    """208."""

    consumerGroup: str
    topic: str | None = None
    topicList: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningInfoRequest(Header):
    """307, from a tool to a broker and from the broker to a member of the group."""

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatusRequest(Header):
    """220, 221: from a broker to a member of a group."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequest(Header):
    """222."""

    topic: str
    group: str
    timestamp: Long
    """Milliseconds; negative is the end of each queue."""
    isForce: bool = False
    """Read by brokers before 5.0: allow moving forwards too."""
    queueId: Int | None = None
    """Queue; absent or negative: all."""
    offset: Long | None = None
    """Queue offset; absent or negative: by the timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOffsetRequest(Header):
    """314."""

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteRequest(Header):
    """105."""

    topic: str
    acceptStandardJsonOnly: bool | None = None
    rbNotify: bool | None = None
    """Rocketbed's own: notify this connection from now on when a broker has another master
    (32109)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMovedNotice(Header):
    """32109."""

    brokerName: str
    former: str
    """`host:port` of the former master."""
    address: str
    """`host:port` of the new master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRequest(Header):
    """103 (wire.md 3.2)."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    haServerAddr: str
    brokerId: Long
    heartbeatTimeoutMillis: Long | None = None
    enableActingMaster: bool | None = None
    compressed: bool = False
    bodyCrc32: Int = 0
    zoneName: str | None = field(default=None, metadata=_named("__ZONE_NAME"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponse(Header):
    """Answer to 103; both are set only for a slave whose master is alive."""

    haServerAddr: str | None = None
    masterAddr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentityRequest(Header):
    """104 and 322: identity of a broker."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    brokerId: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersionResponse(Header):
    """Answer to 322."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequest(Header):
    """904."""

    clusterName: str
    brokerAddr: str
    brokerName: str
    brokerId: Long | None = None
    epoch: Int | None = None
    maxOffset: Long | None = None
    confirmOffset: Long | None = None
    heartbeatTimeoutMills: Long | None = None
    electionPriority: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest(Header):
    """224."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNameRequest(Header):
    """205 and 327."""

    brokerName: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeResponse(Header):
    """Answer to 205."""

    wipeTopicCount: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPermissionResponse(Header):
    """Answer to 327."""

    addTopicCount: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInNameserverRequest(Header):
    """216."""

    topic: str
    clusterName: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKvRequest(Header):
    """100."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvKeyRequest(Header):
    """101 and 102."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvValueResponse(Header):
    """Answer to 101."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRequest(Header):
    """219."""

    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGroupRequest(Header):
    """901."""

    clusterName: str
    brokerName: str
