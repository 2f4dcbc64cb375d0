"""The content of a send: a message or batch with ids, compressed once for all attempts."""

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
    """The part of a send that stays the same in all its attempts."""

    topic: str
    code: RequestCode
    body: bytes
    properties: str
    flag: int
    message_ids: tuple[str, ...]
    born_ms: int
    sys_flag: int = 0

    def command(self, group: str, queue: MessageQueue) -> Command:
        """Return the request that sends it to a queue."""
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
"""Id and encoded form of a message in a batch."""


class Envelopes:
    """Makes the envelopes of one producer."""

    def __init__(self, session: Session, compress: Codec | None, compress_above: int) -> None:
        """Raise `BadMessage`, or `MissingLibrary` for a codec that is not installed."""
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
        """Return the envelope of one checked message."""
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
        """True if a message that is sent alone is compressed."""
        return self._compress is not None and len(message.body) >= self._compress_above

    def of_batch(self, messages: Sequence[Message]) -> Envelope:
        """Return the envelope of a batch. Raises `BadMessage` for messages that cannot be one
        batch."""
        if not messages or any(message.topic != messages[0].topic for message in messages):
            raise BadMessage("a batch must contain at least one message, all of the same topic")
        for message in messages:
            message.check()
            if message.delay_level:
                raise BadMessage("messages of a batch cannot be delayed: send them one by one")
        return self.of_items(messages[0].topic, [self.item(message) for message in messages])

    def item(self, message: Message) -> Item:
        """Encode a message for a batch. Raises `BadMessage`."""
        key = message.message_id or self._session.unique_key()
        properties = message.properties_text(key).encode()
        return key, BatchItem(message.body, message.flag, properties)

    def of_items(self, topic: str, items: Sequence[Item]) -> Envelope:
        """Return the envelope of encoded messages. Raises `BadMessage` if they are too large
        together."""
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
    """Return the message with further properties."""
    return replace(message, properties={**message.properties, **properties})
