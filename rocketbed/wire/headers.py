"""Headers of the data path: one frozen class per request or response, in RocketMQ's names.

The order of a class's fields is also the order of values in msgpack headers
(`encoding.positional`), so new fields go to the end. Sources: wire.md 2.1, 2.2, 4, 5, 6.
"""

from dataclasses import dataclass, field

from rocketbed.wire.encoding.fields import Header, Int, Long


def _named(name: str) -> dict[str, str]:
    return {"name": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequest(Header):
    """10, 324: one message; the body is the message's body."""

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: Int
    queueId: Int
    sysFlag: Int
    bornTimestamp: Long
    flag: Int
    properties: str | None = None
    reconsumeTimes: Int | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int | None = None
    batch: bool = False
    brokerName: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageV2Request(Header):
    """310, 320, 325: the same fields under one-letter names (wire.md 4.1)."""

    a: str
    b: str
    c: str
    d: Int
    e: Int
    f: Int
    g: Long
    h: Int
    i: str | None = None
    j: Int | None = None
    k: bool = False
    l: Int | None = None  # noqa: E741
    m: bool = False
    n: str | None = None

    @classmethod
    def of(cls, plain: SendMessageRequest) -> "SendMessageV2Request":
        """Return the request under the short names."""
        return cls(
            a=plain.producerGroup,
            b=plain.topic,
            c=plain.defaultTopic,
            d=plain.defaultTopicQueueNums,
            e=plain.queueId,
            f=plain.sysFlag,
            g=plain.bornTimestamp,
            h=plain.flag,
            i=plain.properties,
            j=plain.reconsumeTimes,
            k=plain.unitMode,
            l=plain.maxReconsumeTimes,
            m=plain.batch,
            n=plain.brokerName,
        )

    def plain(self) -> SendMessageRequest:
        """Return the request under the long names."""
        return SendMessageRequest(
            producerGroup=self.a,
            topic=self.b,
            defaultTopic=self.c,
            defaultTopicQueueNums=self.d,
            queueId=self.e,
            sysFlag=self.f,
            bornTimestamp=self.g,
            flag=self.h,
            properties=self.i,
            reconsumeTimes=self.j,
            unitMode=self.k,
            maxReconsumeTimes=self.l,
            batch=self.m,
            brokerName=self.n,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponse(Header):
    """Answer to every kind of send (wire.md 4.3)."""

    msgId: str | None = None
    queueId: Int | None = None
    queueOffset: Long | None = None
    transactionId: str | None = None
    batchUniqId: str | None = None
    recallHandle: str | None = None
    region: str | None = field(default=None, metadata=_named("MSG_REGION"))
    trace: str | None = field(default=None, metadata=_named("TRACE_ON"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageRequest(Header):
    """11, 361 (wire.md 5.1)."""

    consumerGroup: str
    topic: str
    queueId: Int
    queueOffset: Long
    maxMsgNums: Int
    sysFlag: Int
    commitOffset: Long
    suspendTimeoutMillis: Long
    subscription: str | None = None
    subVersion: Long
    expressionType: str | None = None
    maxMsgBytes: Int | None = None
    requestSource: Int | None = None
    proxyFrowardClientId: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponse(Header):
    """Answer to a pull that reached the queue (wire.md 5.3)."""

    suggestWhichBrokerId: Long
    nextBeginOffset: Long
    minOffset: Long
    maxOffset: Long
    offsetDelta: Long | None = None
    topicSysFlag: Int | None = None
    groupSysFlag: Int | None = None
    forbiddenType: Int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequest(Header):
    """12: by topic, key and time."""

    topic: str
    key: str
    maxNum: Int
    beginTimestamp: Long
    endTimestamp: Long
    indexType: str | None = None
    uniqueKeyQuery: bool = field(default=False, metadata=_named("_UNIQUE_KEY_QUERY"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponse(Header):
    """Answer to 12."""

    indexLastUpdateTimestamp: Long
    indexLastUpdatePhyoffset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequest(Header):
    """14."""

    consumerGroup: str
    topic: str
    queueId: Int
    setZeroIfNotFound: bool | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponse(Header):
    """Answer to 14, 29, 30 and 31."""

    offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequest(Header):
    """15."""

    consumerGroup: str
    topic: str
    queueId: Int
    commitOffset: Long
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequest(Header):
    """29; `boundaryType` is `lower` (default) or `upper` in any case."""

    topic: str
    queueId: Int
    timestamp: Long
    boundaryType: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxOffsetRequest(Header):
    """30."""

    topic: str
    queueId: Int
    committed: bool = True
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest(Header):
    """31 and 32: one queue of a topic."""

    topic: str
    queueId: Int
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarliestStoreTimeResponse(Header):
    """Answer to 32; -1 when the queue is empty."""

    timestamp: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequest(Header):
    """33: by physical offset."""

    offset: Long
    topic: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Header):
    """Answer to 34; `rbMsgpack` is rocketbed's own: this server reads msgpack headers (design.md
    2)."""

    supportsV2: bool = field(metadata=_named("IS_SUPPORT_HEART_BEAT_V2"))
    subscriptionChanged: bool = field(metadata=_named("IS_SUB_CHANGE"))
    rbMsgpack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequest(Header):
    """35: one group of a client."""

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackRequest(Header):
    """36: deliver the message at a physical offset to a group again; a level below 0 gives it
    up."""

    offset: Long
    group: str
    delayLevel: Int
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRequest(Header):
    """38, 40 and 203: a consumer group."""

    consumerGroup: str
