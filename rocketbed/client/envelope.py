"""What a producer sends: a message or a batch with its ids, packed, the same at each attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rocketbed.client.errors import BadMessage
from rocketbed.client.messages import BODY_MAX, Message
from rocketbed.client.packing import Codec, check_codec, pack_body
from rocketbed.client.routes import DEFAULT_QUEUES, DEFAULT_TOPIC
from rocketbed.client.session import Session
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command, RequestCode, request
from rocketbed.wire.headers import SendMessageV2Request
from rocketbed.wire.message import BatchItem, encode_batch


@dataclass(frozen=True, slots=True)
class Envelope:
    """What stays the same over all attempts of a send."""

    topic: str
    code: RequestCode
    body: bytes
    properties: str
    flag: int
    message_ids: tuple[str, ...]
    born_ms: int
    sys_flag: int = 0

    def command(self, group: str, queue: MessageQueue) -> Command:
        """The request that sends it to a queue."""
        header = SendMessageV2Request(
            a=group,
            b=self.topic,
            c=DEFAULT_TOPIC,
            d=DEFAULT_QUEUES,
            e=queue.queue_id,
            f=self.sys_flag,
            g=self.born_ms,
            h=self.flag,
            i=self.properties,
            j=0,
            k=False,
            m=self.code == RequestCode.SEND_BATCH_MESSAGE,
            n=queue.broker_name,
        )
        return request(self.code, header.encode(), self.body)


Item = tuple[str, BatchItem]
"""A message of a batch, with its id."""


class Envelopes:
    """Makes them, for one producer."""

    def __init__(self, session: Session, compress: Codec | None, compress_above: int) -> None:
        """Raises `BadMessage`, `MissingLibrary` for a way to compress that is not installed."""
        if compress is not None:
            try:
                check_codec(compress)
            except ValueError as exc:
                raise BadMessage(str(exc)) from exc
        if type(compress_above) is not int or compress_above < 0:
            raise BadMessage(f"compress_above must be a number of bytes: {compress_above!r}")
        self._session = session
        self._compress = compress
        self._compress_above = compress_above

    def of_one(self, message: Message) -> Envelope:
        """Of a message that was checked."""
        key = message.message_id or self._session.unique_key()
        body, sys_flag = message.body, 0
        if self._compress is not None and self.packs(message):
            body, sys_flag = pack_body(body, self._compress)
        return Envelope(
            message.topic,
            RequestCode.SEND_MESSAGE_V2,
            body,
            message.properties_text(key),
            message.flag,
            (key,),
            self._session.world.clock.wall_ms(),
            sys_flag,
        )

    def packs(self, message: Message) -> bool:
        """Whether a message that goes alone is compressed."""
        return self._compress is not None and len(message.body) >= self._compress_above

    def of_batch(self, messages: Sequence[Message]) -> Envelope:
        """Raises `BadMessage` for messages that cannot be one batch."""
        if not messages or any(message.topic != messages[0].topic for message in messages):
            raise BadMessage("a batch must contain at least one message, all of the same topic")
        for message in messages:
            message.check()
            if message.delay_level:
                raise BadMessage("messages of a batch cannot be delayed: send them one by one")
        return self.of_items(messages[0].topic, [self.item(message) for message in messages])

    def item(self, message: Message) -> Item:
        """A message's part of a batch. Raises `BadMessage`."""
        key = message.message_id or self._session.unique_key()
        properties = message.properties_text(key).encode()
        return key, BatchItem(message.body, message.flag, properties)

    def of_items(self, topic: str, items: Sequence[Item]) -> Envelope:
        """A batch. Raises `BadMessage` for too large a one."""
        body = encode_batch([item for _, item in items])
        if len(body) > BODY_MAX:
            raise BadMessage(
                f"the batch takes {len(body)} bytes; the limit is {BODY_MAX}: split it"
            )
        whole = Message(topic, body)
        return Envelope(
            topic,
            RequestCode.SEND_BATCH_MESSAGE,
            body,
            whole.properties_text(self._session.unique_key()),
            0,
            tuple(key for key, _ in items),
            self._session.world.clock.wall_ms(),
        )


def with_properties(message: Message, properties: Mapping[str, str]) -> Message:
    """The message with further properties."""
    return replace(message, properties={**message.properties, **properties})
