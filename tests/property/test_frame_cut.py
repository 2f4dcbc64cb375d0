"""Any cut of a stream of frames gives the same commands; any bytes give commands or one error."""

from hypothesis import given
from hypothesis import strategies as st

from rocketbed.wire.command import Command, Encoding
from rocketbed.wire.errors import LocalProtocolError, RemoteProtocolError
from rocketbed.wire.frame import FrameReader, encode

texts = st.text(st.characters(codec="utf-8"), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
names = st.sampled_from(["topic", "queueId", "a", "e", "offset", "consumerGroup", "own"]) | texts
values = texts | int32.map(str) | st.sampled_from(["true", "007", "-0", "+1", "9" * 25, "\u0663"])
commands = st.builds(
    Command,
    st.sampled_from([0, 10, 11, 15, 22, 34, 310, 105, 32767]),
    int32,
    st.sampled_from([0, 1, 2]),
    st.integers(0, 1000),
    st.sampled_from(["JAVA", "PYTHON", "GO"]),
    st.none() | texts.filter(bool),
    st.dictionaries(names, values, max_size=6),
    st.binary(max_size=60),
    st.sampled_from(Encoding),
)


@given(st.lists(commands, min_size=1, max_size=6), st.data())
def test_cuts_do_not_matter(sent: list[Command], data: st.DataObject) -> None:
    stream = b"".join(encode(command) for command in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    cut_commands: list[Command] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        cut_commands += reader.feed(stream[start:end])
    assert reader.pending == 0
    whole = FrameReader().feed(stream)
    assert cut_commands == whole
    for got, expected in zip(whole, sent, strict=True):
        assert (got.code, got.opaque, got.flag, got.remark) == (
            expected.code,
            expected.opaque,
            expected.flag,
            expected.remark,
        )
        assert got.fields == expected.fields
        assert got.body == expected.body


@given(st.lists(commands, min_size=1, max_size=3))
def test_byte_by_byte_is_the_same_as_whole(sent: list[Command]) -> None:
    stream = b"".join(encode(command) for command in sent)
    reader = FrameReader()
    by_byte = [command for byte in stream for command in reader.feed(bytes([byte]))]
    assert by_byte == FrameReader().feed(stream)


def outcome(pieces: list[bytes]) -> tuple[list[Command], str | None]:
    """Commands, and the error that followed them."""
    reader = FrameReader()
    commands: list[Command] = []
    try:
        for piece in pieces:
            commands += reader.feed(piece)
        reader.check()
    except RemoteProtocolError as exc:
        return commands, str(exc)
    return commands, None


@given(st.lists(commands, max_size=3), st.integers(0, 10_000), st.integers(0, 255), st.binary())
def test_damage_gives_the_same_error_however_split(
    sent: list[Command], position: int, value: int, tail: bytes
) -> None:
    stream = bytearray(b"".join(encode(command) for command in sent) + tail)
    if stream:
        stream[position % len(stream)] = value
    data = bytes(stream)
    whole_commands, error = outcome([data])
    assert outcome([data[i : i + 1] for i in range(len(data))]) == (whole_commands, error)
    for command in whole_commands:
        assert all(isinstance(text, str) for text in command.fields.values())
        try:
            encode(command, Encoding.MSGPACK)
        except LocalProtocolError:
            assert command.flag >= 2**31 or command.version >= 2**31
