"""A real client's recorded requests to a broker get the same answers from ours.

All frames of the client-to-broker connections are sent byte for byte, in the order of the
recording. Equal are codes, remarks, ext fields and bodies, but for store times, hosts and physical
offsets. Two things differ on purpose:

- messages of a batch keep their own properties, where 5.3.3 appends the request's (wire.md 4.4);
- what the broker says about itself: language.
"""

import pytest
import trio

from rocketbed.wire.command import Command, RequestCode
from rocketbed.wire.frame import FrameReader
from rocketbed.wire.message import StoredMessage, decode_messages
from rocketbed.wire.properties import decode_properties
from rocketbed.world.api import Stream, World
from tests.support.broker import HOST, PORT, Session, with_node
from tests.support.wire_sessions import SESSIONS, RecordedFrame, recorded_frames

PRODUCER, CONSUMER = 2, 4
"""Connections of the recordings that go to the broker."""
ADDED_BY_BROKER = {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER"}


class Wire:
    """A connection on which frames are sent as they are."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._reader = FrameReader()
        self._arrived: list[Command] = []

    @classmethod
    async def open(cls, world: World) -> "Wire":
        return cls(await world.network.connect(HOST, PORT))

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive(self) -> Command:
        while not self._arrived:
            self._arrived += self._reader.feed(bytes(await self._stream.receive_some(65_536)))
        return self._arrived.pop(0)

    async def is_silent(self, seconds: float) -> bool:
        """True if no frame arrives for some (virtual) seconds."""
        with trio.move_on_after(seconds):
            self._arrived.insert(0, await self.receive())
            return False
        return True


def decoded(frame: RecordedFrame) -> Command:
    (command,) = FrameReader().feed(frame.data)
    return command


def answers_of(frames: list[RecordedFrame]) -> dict[tuple[int, int], Command]:
    """Recorded responses by connection and opaque."""
    commands = [(frame.connection, decoded(frame)) for frame in frames if not frame.is_from_client]
    return {
        (connection, command.opaque): command
        for connection, command in commands
        if command.is_response
    }


def comparable(fields: dict[str, str]) -> dict[str, str]:
    """Ext fields without the physical offsets that are in message ids."""
    return {
        name: str(value.count(",")) if name == "msgId" else value for name, value in fields.items()
    }


def same_message(ours: StoredMessage, theirs: StoredMessage) -> None:
    for name in ("topic", "queue_id", "queue_offset", "flag", "body", "body_crc"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("sys_flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset"):
        assert getattr(ours, name) == getattr(theirs, name)
    ours_found, theirs_found = dict(ours.properties), dict(theirs.properties)
    if theirs.body.startswith(b"wire batch"):
        own = decode_properties(theirs.properties_text.partition("MSG_REGION")[0])
        assert ours_found == own
    else:
        assert ours_found == theirs_found
        assert ours_found.keys() >= ADDED_BY_BROKER


def same_answer(ours: Command, theirs: Command) -> None:
    assert (ours.code, ours.flag, ours.remark) == (theirs.code, theirs.flag, theirs.remark)
    assert comparable(ours.fields) == comparable(theirs.fields)
    assert ours.encoding == theirs.encoding
    if theirs.remark == "FOUND":
        pairs = zip(decode_messages(ours.body), decode_messages(theirs.body), strict=True)
        for our_message, their_message in pairs:
            same_message(our_message, their_message)
    else:
        assert ours.body == theirs.body


@pytest.mark.parametrize("session_name", SESSIONS)
def test_the_recorded_client_gets_the_recorded_answers(session_name: str) -> None:
    frames = [
        frame for frame in recorded_frames(session_name) if frame.connection in (PRODUCER, CONSUMER)
    ]
    answers = answers_of(frames)
    compared: list[int] = []

    async def scenario(session: Session) -> None:
        wires = {number: await Wire.open(session.world) for number in (PRODUCER, CONSUMER)}
        for frame in frames:
            if not frame.is_from_client:
                continue
            command, wire = decoded(frame), wires[frame.connection]
            await wire.send(frame.data)
            is_first = -RequestCode.NOTIFY_CONSUMER_IDS_CHANGED not in compared
            if command.code == RequestCode.HEART_BEAT and wire is wires[CONSUMER] and is_first:
                notice = await wire.receive()
                assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                assert notice.fields == {"consumerGroup": "WireGroup"}
                assert notice.is_oneway
                compared.append(-notice.code)
            theirs = answers.get((frame.connection, command.opaque))
            if theirs is None:
                assert command.is_oneway or command.code == RequestCode.PULL_MESSAGE
                assert await wire.is_silent(0.5)
                continue
            ours = await wire.receive()
            assert ours.opaque == command.opaque
            same_answer(ours, theirs)
            compared.append(command.code)
            if "DELAY\x01" in command.fields.get("i", ""):  # the client waited for it too
                written = session.node.store.written
                await written.wait_above(written.value)
                await session.node.store.dispatched.wait_for(written.value)
        offsets = session.node.tables.offsets
        committed = [offsets.get("WireGroup", "WireTopic", queue) for queue in range(4)]
        assert sorted(committed) == [2, 2, 2, 4]

    with_node(scenario, "brokerIP2=10.0.0.1")
    codes = {code for code in compared if code > 0}
    assert codes == {310, 320, 34, 38, 14, 11, 35}
    assert len(compared) > 25
