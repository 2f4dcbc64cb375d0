"""A broker with damaged records in its log: pulls, queries by id and by key serve the others."""

from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers import QueryMessageRequest, ViewMessageRequest
from rocketbed.wire.message import StoredMessage, decode_messages
from tests.model.broker import Peer
from tests.model.mending import edited
from tests.model.stage import SEGMENT, Stage

Code, Answer = RequestCode, ResponseCode
COUNT: Final = 40
DAMAGED: Final = 4
SCRUBBED_S: Final = 5.0
NODE: Final = "master"


def run_damaged_records(seed: int) -> str:
    random = Random(f"spoilt/{seed}")
    with Stage(f"spoilt/{seed}") as stage:
        stage.node(NODE, {})
        stored: list[StoredMessage] = stage.ask(NODE, lambda peer: _send(peer, random))
        image = stage.stop(NODE)
        # With a damaged last record the node would refuse to start.
        damaged = set(random.sample(range(COUNT - 1), DAMAGED))

        def flip_bodies(disk: SimDisk) -> None:
            for number in sorted(damaged):
                at = stored[number].physical_offset
                path = f"/store/commitlog/{at // SEGMENT * SEGMENT:020d}"
                data = bytearray(disk.contents(path))
                data[data.index(stored[number].body, at % SEGMENT) + 1] ^= 4
                disk.replace_contents(path, bytes(data))

        stage.node(NODE, {}, image=edited(image, flip_bodies))
        stage.simulation.run(SCRUBBED_S)
        stage.ask(NODE, lambda peer: _check(peer, stored, damaged))
        return stage.simulation.digest()


async def _send(peer: Peer, random: Random) -> list[StoredMessage]:
    await peer.create(readQueueNums=1, writeQueueNums=1)
    for number in range(COUNT):
        body = b"%d-" % number + random.randbytes(random.choice((20, 200, 1500)))
        text = {"KEYS": f"k{number % 3}", "UNIQ_KEY": f"U{number}"}
        await peer.send(e=0, body=body, properties=text)
    messages: list[StoredMessage] = []
    while len(messages) < COUNT:
        answer = await peer.pull(Answer.SUCCESS, queueOffset=len(messages))
        messages += decode_messages(answer.body)
    return messages


async def _check(peer: Peer, stored: list[StoredMessage], damaged: set[int]) -> None:
    """Pull from each offset, and query each message."""
    for number, message in enumerate(stored):
        for most in (1, 32):
            await _check_pull(peer, stored, damaged, number, most)
        view = ViewMessageRequest(offset=message.physical_offset).encode()
        values: dict[str, Any] = {"topic": "T", "maxNum": 8, "beginTimestamp": 0}
        query = QueryMessageRequest(
            key=f"U{number}", endTimestamp=1 << 50, uniqueKeyQuery=True, **values
        ).encode()
        for request, fields in ((Code.VIEW_MESSAGE_BY_ID, view), (Code.QUERY_MESSAGE, query)):
            if number in damaged:
                answer = await peer.ask(request, fields, Answer.SYSTEM_ERROR)
                _check_remark(answer.remark, message)
            else:
                answer = await peer.ask(request, fields, Answer.SUCCESS)
                _check_bodies(answer.body, [message], f"{request.name} {number}")


async def _check_pull(
    peer: Peer, stored: list[StoredMessage], damaged: set[int], offset: int, most: int
) -> None:
    """Expect messages up to the next damaged one; an error at a damaged one."""
    if offset in damaged:
        answer = await peer.pull(Answer.SYSTEM_ERROR, queueOffset=offset, maxMsgNums=most)
        _check_remark(answer.remark, stored[offset])
        return
    answer = await peer.pull(Answer.SUCCESS, queueOffset=offset, maxMsgNums=most)
    count, pull = len(decode_messages(answer.body)), f"{most} from {offset}"
    end = min([number for number in damaged if number > offset], default=COUNT)
    assert 0 < count <= min(most, end - offset), f"pull: {count} messages: {pull}"
    _check_bodies(answer.body, stored[offset : offset + count], pull)
    next_offset = int(answer.fields["nextBeginOffset"])
    assert next_offset == offset + count, f"pull: continues at {next_offset}: {pull}"


def _check_bodies(data: bytes, messages: list[StoredMessage], query: str) -> None:
    actual = [(message.queue_offset, message.body) for message in decode_messages(data)]
    expected = [(message.queue_offset, message.body) for message in messages]
    assert actual == expected, f"messages: {query}: {[offset for offset, _ in actual]}"


def _check_remark(remark: str | None, message: StoredMessage) -> None:
    assert str(message.physical_offset) in (remark or ""), f"remark: {remark!r} for {message}"
