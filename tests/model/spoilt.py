"""A broker of whose log some records are bad: what its clients are given beside them, by pulls of
many messages and of one, by id, by key and by time, and that each question about a bad one is
refused."""

from collections.abc import Mapping
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
BAD: Final = 4
SCRUBBED_S: Final = 5.0
NODE: Final = "master"


def run_spoilt(seed: int) -> str:
    random = Random(f"spoilt/{seed}")
    with Stage(f"spoilt/{seed}") as stage:
        stage.node(NODE, {})
        sent: dict[int, StoredMessage] = stage.ask(NODE, lambda peer: _send(peer, random))
        image = stage.stop(NODE)
        bad = set(random.sample(range(COUNT - 1), BAD))  # over the last one a start refuses

        def spoil(disk: SimDisk) -> None:
            for number in sorted(bad):
                at = sent[number].physical_offset
                path = f"/store/commitlog/{at // SEGMENT * SEGMENT:020d}"
                data = bytearray(disk.contents(path))
                data[data.index(sent[number].body, at % SEGMENT) + 1] ^= 4
                disk.replace_contents(path, bytes(data))

        stage.node(NODE, {}, image=edited(image, spoil))
        stage.simulation.run(SCRUBBED_S)
        stage.ask(NODE, lambda peer: _ask(peer, sent, bad))
        return stage.simulation.digest()


async def _send(peer: Peer, random: Random) -> dict[int, StoredMessage]:
    await peer.create(readQueueNums=1, writeQueueNums=1)
    for number in range(COUNT):
        body = b"%d-" % number + random.randbytes(random.choice((20, 200, 1500)))
        text = {"KEYS": f"k{number % 3}", "UNIQ_KEY": f"U{number}"}
        await peer.send(e=0, body=body, properties=text)
    found: list[StoredMessage] = []
    while len(found) < COUNT:
        answer = await peer.pull(Answer.SUCCESS, queueOffset=len(found))
        found += decode_messages(answer.body)
    return dict(enumerate(found))


async def _ask(peer: Peer, sent: Mapping[int, StoredMessage], bad: set[int]) -> None:
    for most in (1, 32):
        for offset in range(COUNT):
            await _pull(peer, sent, bad, offset, most)
    for number, one in sent.items():
        is_bad = number in bad
        asked = ViewMessageRequest(offset=one.physical_offset).encode()
        code = Answer.SYSTEM_ERROR if is_bad else Answer.SUCCESS
        found = await peer.ask(Code.VIEW_MESSAGE_BY_ID, asked, code)
        _is_named(found.remark, one) if is_bad else _same(found.body, [one], f"by id: {number}")
        values: dict[str, Any] = {"topic": "T", "maxNum": 8, "beginTimestamp": 0}
        query = QueryMessageRequest(
            key=f"U{number}", endTimestamp=1 << 50, uniqueKeyQuery=True, **values
        )
        found = await peer.ask(Code.QUERY_MESSAGE, query.encode(), code)
        _is_named(found.remark, one) if is_bad else _same(found.body, [one], f"by key: {number}")


async def _pull(
    peer: Peer, sent: Mapping[int, StoredMessage], bad: set[int], offset: int, most: int
) -> None:
    """Some messages, up to the first bad one at most; nothing where that stands."""
    what = f"{most} from {offset}, {sorted(bad)} are bad"
    if offset in bad:
        found = await peer.pull(Answer.SYSTEM_ERROR, queueOffset=offset, maxMsgNums=most)
        _is_named(found.remark, sent[offset])
        return
    found = await peer.pull(Answer.SUCCESS, queueOffset=offset, maxMsgNums=most)
    count = len(decode_messages(found.body))
    until = min([number for number in bad if number > offset], default=COUNT)
    assert 0 < count <= min(most, until - offset), f"pull: {count} messages: {what}"
    _same(found.body, [sent[number] for number in range(offset, offset + count)], what)
    then = int(found.fields["nextBeginOffset"])
    assert then == offset + count, f"pull: on from {then}: {what}"


def _same(body: bytes, wanted: list[StoredMessage], what: str) -> None:
    found = [(one.queue_offset, one.body) for one in decode_messages(body)]
    right = [(one.queue_offset, one.body) for one in wanted]
    assert found == right, f"given: {what}: {[at for at, _ in found]}"


def _is_named(remark: str | None, one: StoredMessage) -> None:
    assert str(one.physical_offset) in (remark or ""), f"refused: {remark!r} for {one}"
