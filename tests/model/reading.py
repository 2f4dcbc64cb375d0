"""Reading a whole queue with the client of a model."""

from rocketbed.wire.command import ResponseCode
from rocketbed.wire.message import StoredMessage, decode_messages
from tests.model.broker import Peer


async def all_of(peer: Peer, topic: str, queue: int, offset: int = 0) -> list[StoredMessage]:
    """Return the messages of a queue from an offset on; none if the queue does not exist."""
    assert peer.connection is not None
    messages: list[StoredMessage] = []
    while True:
        command = peer.pull_request(
            topic=topic, queueId=queue, queueOffset=offset + len(messages), consumerGroup="tools"
        )
        answer = await peer.connection.request(command, timeout_s=60)
        if answer.code != ResponseCode.SUCCESS:
            return messages
        messages += decode_messages(answer.body)
