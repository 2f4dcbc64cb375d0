"""All of a queue, as a client by hand reads it."""

from rocketbed.wire.command import ResponseCode
from rocketbed.wire.message import StoredMessage, decode_messages
from tests.model.broker import Peer


async def all_of(peer: Peer, topic: str, queue: int, offset: int = 0) -> list[StoredMessage]:
    """Its messages from an offset on; none of a queue that is not there."""
    assert peer.connection is not None
    found: list[StoredMessage] = []
    while True:
        asked = peer.pull_request(
            topic=topic, queueId=queue, queueOffset=offset + len(found), consumerGroup="tools"
        )
        answer = await peer.connection.request(asked, timeout_s=60)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += decode_messages(answer.body)
