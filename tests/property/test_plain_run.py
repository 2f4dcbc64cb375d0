"""A read's plain sends taken as bytes, against the same frames taken one by one: the same answers,
log, queues and index, the same events in the simulator; for requests of every kind, good or not,
and by both bodies."""

import errno
import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import orjson
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import SoloRun
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.command import Encoding, RequestCode, request
from rocketbed.wire.frame import FrameReader, encode
from rocketbed.wire.message import BLANK_SIZE, BatchItem, encode_batch
from tests.support.broker import HOST, PORT, Session, node_run, pull_fields, send_fields
from tests.support.native import native
from tests.support.wire_sessions import SESSIONS, recorded_frames


@pytest.fixture(scope="module", params=["python", "native"], autouse=True)
def body(request: pytest.FixtureRequest) -> None:
    """The body that takes sends as bytes."""
    if request.param == "native":
        native()
    BODY[:] = [f"rbNative={str(request.param == 'native').lower()}"]


BODY: list[str] = []
"""The setting that chooses it."""

KEYS = st.sampled_from(["AB12", "7F000001000A18B4AAC2000000000003", "a-b", "é", "", "K"])
pairs = st.one_of(
    st.tuples(st.just("TAGS"), st.sampled_from(["A", "violet", "标签", ""])),
    st.tuples(st.just("KEYS"), st.sampled_from(["k1", "k1  k2", "", "UNIQ_KEY", "é"])),
    st.tuples(st.just("WAIT"), st.sampled_from(["true", "false", "TRUE", ""])),
    st.tuples(st.sampled_from(["own", "__CRC32#", "x__CRC32#", "MSG_REGION", "", "é"]), st.text()),
    st.tuples(
        st.sampled_from(["DELAY", "POP_CK", "TRAN_MSG", "INNER_NUM", "TIMER_DELAY_MS"]),
        st.sampled_from(["0", "1", "true", ""]),
    ),
)
strings = st.builds(
    lambda key, before, after, cut: "".join(
        f"{name}\x01{value}\x02" for name, value in [*before, *key, *after]
    )[: -cut or None],
    KEYS.map(lambda key: [("UNIQ_KEY", key)]) | st.just([]),
    st.lists(pairs, max_size=2),
    st.lists(pairs, max_size=3),
    st.integers(0, 3),
)
likely_strings = st.builds(
    lambda key, tag, own: f"KEYS\x01{own}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01{tag}",
    st.sampled_from(["AB12", "7F000001000A18B4AAC2000000000003"]),
    st.sampled_from(["A", "B"]),
    st.sampled_from(["k1", "k2 k3"]),
)
numbers = st.sampled_from(["0", "1", "3", "4", "-1", "01", "1_0", "", "2147483648", "é"])
likely_fields = st.builds(
    lambda topic, queue_id, born, string, changes: {
        **send_fields(topic, queue_id, g=born),
        "i": string,
        **changes,
    },
    st.sampled_from(["T", "T", "U", "New"]),
    st.integers(0, 3),
    st.integers(0, 2**63 - 1),
    likely_strings | strings,
    st.just({}),
)
odd_fields = st.builds(
    lambda fields, changes: {**fields, **changes},
    likely_fields,
    st.dictionaries(st.sampled_from("abcdefghjklmn"), numbers | st.just("true"), max_size=2),
)
bodies = st.binary(max_size=40) | st.sampled_from([b"", b"x" * 700, b"y" * 5000])


def frame(
    code: int, fields: dict[str, str], body: bytes, encoding: Encoding, opaque: int, flag: int
) -> bytes:
    command = request(code, fields, body, encoding=encoding)
    command.opaque, command.flag = opaque, flag
    return encode(command)


opaques = st.integers(0, 2000) | st.sampled_from([10**9, 2**31 - 1, -1])
plain = st.builds(
    frame,
    st.just(310),
    likely_fields,
    st.binary(min_size=1, max_size=40),
    st.sampled_from(Encoding),
    opaques,
    st.sampled_from([0, 0, 0, 2]),
)
sends = st.builds(
    frame,
    st.sampled_from([310, 310, 10, 320]),
    odd_fields,
    bodies,
    st.sampled_from(Encoding),
    opaques,
    st.sampled_from([0, 2, 1, 4]),
)
GET_MAX = frame(
    RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "1"}, b"", Encoding.JSON, 6, 0
)
unusual = st.sampled_from(
    [
        frame(RequestCode.PULL_MESSAGE, pull_fields(), b"", Encoding.JSON, 5, 0),
        GET_MAX,
        frame(
            RequestCode.SEND_BATCH_MESSAGE,
            send_fields(m=True),
            encode_batch([BatchItem(b"b", 0, b"UNIQ_KEY\x01U\x02")] * 2),
            Encoding.JSON,
            7,
            0,
        ),
    ]
)


def with_header(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The frame with another header."""
    word = int.from_bytes(data[4:8], "big")
    length = word & 0xFFFFFF
    header = change(data[8 : 8 + length])
    body = data[8 + length :]
    word += len(header) - length
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big") + word.to_bytes(4, "big") + header + body
    )


def spliced(header: bytes, place: int, cut: int, put: bytes) -> bytes:
    at = place % (len(header) + 1)
    return header[:at] + put + header[at + cut :]


PIECES = [
    b'"',
    b"\\",
    b"\\u0001",
    b"\\u0002",
    b"\\u0041",
    b"\x01",
    b"\x02",
    b"\xff",
    b"\x00",
    b"{",
    b'"opaque":,',
    b'"opaque"',
    b'"g":"1"',
    b'"i":"',
    b'"g":"5",',
    b'"i":"UNIQ_KEY\\u0001Z\\u0002",',
    b'"opaque":7,',
    b'"extFields":{},',
    b" ",
    b"7",
    b"-",
    b"2UNIQ_KEY\\u0001Q",
    b"\\u0002UNIQ_KEY\\u0001Q\\u0002",
    b'","b":"U',
]


def fronted(header: bytes) -> bytes:
    """The members in the order of Go's client, if it is JSON."""
    if not header.startswith(b"{"):
        return header
    members = orjson.loads(header)
    return orjson.dumps({"opaque": members.pop("opaque"), **members})


def ordered(header: bytes) -> bytes:
    """The same header in the order of Go's client, after the code."""
    if not header.startswith(b"{"):
        return header
    members = orjson.loads(fronted(header))
    return orjson.dumps({"code": members.pop("code"), **members})


in_front = plain.map(lambda data: with_header(data, ordered))
rotten = st.builds(
    lambda data, place, cut, put: with_header(
        data, functools.partial(spliced, place=place, cut=cut, put=put)
    ),
    plain | in_front,
    st.integers(0, 400),
    st.integers(0, 3),
    st.sampled_from(PIECES) | st.binary(max_size=3),
)
streams = st.lists(
    st.one_of(plain, plain, in_front, sends, unusual, rotten), min_size=1, max_size=14
)


def run(
    frames: list[bytes],
    cut: int,
    options: tuple[str, ...],
    fault: SimFault | None = None,
    *,
    one_by_one: bool,
) -> SoloRun:
    """Send the frames as they are in pieces of `cut` bytes; every byte of the answers."""

    async def scenario(session: Session) -> tuple[bytes, list[object]]:
        broker = session.node.broker
        if one_by_one:
            broker.handlers.plain_run = Handlers().plain_run
        await session.send("T")
        await session.send("U")
        if fault is not None:
            session.world.disk.faults.append(replace(fault))  # type: ignore[attr-defined]
        stream = await session.world.network.connect(HOST, PORT)
        received: list[bytes] = []

        async def receive() -> None:
            # Broken is a connection that the node ended while something was still under way.
            with suppress(trio.BrokenResourceError):
                while more := await stream.receive_some(65_536):
                    received.append(bytes(more))
            received.append(b"the end")

        data = b"".join(frames)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            with suppress(trio.BrokenResourceError):
                for at in range(0, len(data), cut):
                    await stream.send_all(data[at : at + cut])
                    await trio.sleep(0.01)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(stream)
        sender, store = broker.sender, session.node.store
        counts: list[object] = [sender.accepted, sender.accepted_bytes, sender.failed]
        return b"".join(received), [*counts, store.queues(), store.max_offset]

    return node_run(scenario, *options, *BODY)


def check(
    frames: list[bytes], cut: int, *options: str, fault: SimFault | None = None
) -> tuple[bytes, list[object]]:
    """Compare both ways; the answers and counts."""
    together = run(frames, cut, options, fault, one_by_one=False)
    apart = run(frames, cut, options, fault, one_by_one=True)
    assert together.value == apart.value
    for path in apart.image.paths():
        assert together.image.contents(path) == apart.image.contents(path), path
    assert together.digest == apart.digest
    assert not [line for line in together.log if line.level == "error"]
    value: tuple[bytes, list[object]] = together.value
    return value


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(streams, st.sampled_from([1 << 20, 1 << 20, 700, 97]))
def test_frames_in_one_read_equal_single_frames(frames: list[bytes], cut: int) -> None:
    check(frames, cut)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    streams,
    st.sampled_from(
        [
            ("flushDiskType=SYNC_FLUSH",),
            ("enabledAppendPropCRC=true",),
            ("maxMessageSize=600",),
            ("rbDispatchRing=4",),
            ("messageIndexEnable=false",),
            ("brokerRole=SLAVE", "brokerId=1"),
            ("startAcceptSendRequestTimeStamp=9000000000000",),
        ]
    ),
)
def test_under_other_settings_too(frames: list[bytes], options: tuple[str, ...]) -> None:
    check(frames, 1 << 20, *options)


@settings(max_examples=30, deadline=None)
@given(streams, st.integers(1, 2))
def test_a_write_that_fails_refuses_the_same(frames: list[bytes], times: int) -> None:
    fault = SimFault(operation="write", path="/store/commitlog/*", error=errno.ENOSPC, times=times)
    check(frames, 1 << 20, fault=fault)


def test_failed_run_returns_its_offsets() -> None:
    """Each message is refused, but a one-way one; the next has the first's queue offset."""
    frames = [
        frame(310, {**send_fields("T", 1), "i": "UNIQ_KEY\x01K\x02"}, b"x", kind, opaque, flag)
        for kind in Encoding
        for opaque, flag in ((1, 0), (2, 2), (3, 0))
    ]
    fault = SimFault(operation="write", path="/store/commitlog/*", error=errno.ENOSPC, times=1)
    received, counts = check([*frames, GET_MAX, *frames], 1 << 20, fault=fault)
    answers = FrameReader().feed(received)
    assert [answer.code != 0 for answer in answers] == [True] * 6 + [False] * 7
    assert [answer.fields.get("queueOffset") for answer in answers[7:]] == [*"023568"]
    assert counts[0] == 2 + 9
    assert counts[2] == 9


@pytest.mark.parametrize("name", SESSIONS)
def test_recorded_frames_of_real_clients(name: str) -> None:
    frames = [
        frame.data
        for frame in recorded_frames(name)
        if frame.is_from_client and frame.connection == 2
    ]
    check(frames, 1 << 20)
    check(frames, 333)


KEY = "UNIQ_KEY\x01AB12\x02"
STRINGS = {
    KEY: 1,
    KEY[:-1]: 1,
    KEY + "WAIT\x01true\x02TAGS\x01A\x02KEYS\x01k1 k2\x02own\x01x y": 1,
    KEY + "own\x01标签\\\x02": 1,
    KEY + "TAGS\x01\x02": 1,
    # what has a meaning of its own
    KEY + "WAIT\x01false\x02": 0,
    KEY + "WAIT\x01TRUE\x02": 0,
    KEY + "WAIT\x01\x02": 0,
    KEY + "DELAY\x010\x02": 0,
    KEY + "POP_CK\x01p\x02": 0,
    KEY + "TRAN_MSG\x01false\x02": 0,
    KEY + "INNER_NUM\x011\x02": 0,
    KEY + "TIMER_DELAY_MS\x011\x02": 0,
    KEY + "__CRC32#\x0112\x02": 0,
    "x__CRC32#\x0112\x02" + KEY: 0,
    # keys that are invalid, repeated, or that an answer cannot hold unchanged
    "": 0,
    "TAGS\x01A\x02": 0,
    "UNIQ_KEY\x01\x02": 0,
    "UNIQ_KEY": 0,
    "UNIQ_KEY\x01a-b\x02": 0,
    "UNIQ_KEY\x01é\x02": 0,
    'UNIQ_KEY\x01a"b\x02': 0,
    KEY + "UNIQ_KEY\x01CD34\x02": 0,
    KEY + "KEYS\x01a\x02KEYS\x01b\x02": 0,
    # pieces that are no pairs
    KEY + "own\x02": 0,
    KEY + "own": 0,
    KEY + "\x02": 0,
    KEY + "\x01v\x02": 0,
    KEY + "own\x01a\x01b\x02": 0,
    KEY + "own\x01a\x02\x02WAIT\x01true\x02": 0,
    "own\x02" + KEY + "b\x01c\x01d\x02": 0,
    "TAGS\x01A\x02own\x02x\x01y\x01UNIQ_KEY\x01AB12\x02": 0,
}
"""Property strings, and whether a send with one is plain."""
FIELDS = [
    ({}, 1),
    ({"e": "3", "f": "1", "h": "-2147483648"}, 1),
    ({"b": "Unknown"}, 0),
    ({"e": "4"}, 0),
    ({"e": "-1"}, 0),
    ({"e": ""}, 0),
    ({"f": "4"}, 0),
    ({"f": "16"}, 0),
    ({"f": "-1"}, 0),
    ({"f": str(2**31)}, 0),
    ({"h": str(2**31)}, 0),
    ({"g": "-1"}, 0),
    ({"g": str(2**63)}, 0),
    ({"j": "1"}, 0),
    ({"m": "true"}, 0),
]


def taken_counts(frames: list[bytes]) -> list[int]:
    """Return for each frame alone how many of three in one read are taken as bytes."""

    async def scenario(session: Session) -> list[int]:
        await session.send("T")
        sender = session.node.broker.sender
        (connection,) = session.node.servers[0].connections
        counts = []
        for data in frames:
            at = sender.take(data * 3, 0, connection)
            assert at % len(data) == 0
            counts.append(at // len(data))
            sender.end_of_run(connection)
        return counts

    value: list[int] = node_run(scenario, *BODY).value
    return value


@pytest.mark.parametrize("encoding", list(Encoding))
def test_plain_frames_are_taken_and_no_others(encoding: Encoding) -> None:
    fields = [({**send_fields(), "i": KEY, **changes}, is_plain) for changes, is_plain in FIELDS]
    fields += [({**send_fields(), "i": string}, is_plain) for string, is_plain in STRINGS.items()]
    frames = [frame(310, actual_count, b"x", encoding, 9, 0) for actual_count, _ in fields]
    plain_ones = [3 * is_plain for _, is_plain in fields]
    for actual_count, (about, expected_count) in zip(
        taken_counts(frames), zip(fields, plain_ones, strict=True), strict=True
    ):
        assert actual_count == expected_count, about[0]
    check([data for data in frames for _ in range(2)], 1 << 20, "flushDiskType=SYNC_FLUSH")


@pytest.mark.parametrize("encoding", list(Encoding))
def test_other_frames_are_left(encoding: Encoding) -> None:
    fields = {**send_fields(), "i": KEY}
    assert taken_counts(
        [
            frame(310, fields, b"x", encoding, 9, 2),
            frame(310, fields, b"x", encoding, 9, 1),
            frame(310, fields, b"", encoding, 9, 0),
            frame(10, fields, b"x", encoding, 9, 0),
            frame(320, fields, b"x", encoding, 9, 0),
            frame(310, {**fields, "a": "p" * 2000}, b"x", encoding, 9, 0),
        ]
    ) == [3, 0, 0, 0, 0, 0]


def test_json_headers_are_split_at_javas_and_gos_opaque() -> None:
    data = frame(310, {**send_fields(), "i": KEY}, b"x", Encoding.JSON, 9, 0)
    assert taken_counts(
        [
            with_header(data, ordered),
            with_header(data, fronted),
            with_header(data, lambda header: header.replace(b'"opaque":9', b'"opaque":09')),
            with_header(data, lambda header: header.replace(b'"opaque":9', b'"opaque":1000000000')),
            with_header(data, lambda header: header.replace(b'"opaque":9', b'"opaque":-9')),
            with_header(data, lambda header: header + b" "),
            with_header(data, lambda header: header + b"}"),
            with_header(data, lambda header: header.replace(b'"g":', b'"g":"1","g":')),
            with_header(data, lambda header: header.replace(b'"i":', b'"i":"a","i":')),
            with_header(data, lambda header: header[:-1] + b',"opaque":8}'),
        ]
    ) == [3, 0, 0, 0, 0, 3, 0, 0, 0, 0]


def test_largest_body_is_accepted_and_the_next_refused() -> None:
    fields = {**send_fields(), "i": KEY}
    frames = [frame(310, fields, b"x" * size, Encoding.JSON, size, 0) for size in (600, 601, 600)]
    received, counts = check(frames, 1 << 20, "maxMessageSize=600")
    codes = {answer.opaque: answer.code for answer in FrameReader().feed(received)}
    assert codes == {600: 0, 601: 13}
    assert counts[0] == 2 + 2


def test_records_up_to_the_end_of_a_segment() -> None:
    """Each size is reached at some segment's end, where a filler must fit after it."""
    fields = {**send_fields(), "i": KEY}
    frames = [
        frame(310, fields, b"x" * size, Encoding.JSON, size, 0)
        for size in range(1, 400)
        if size % 3
    ]
    check(frames, 1 << 20, "mappedFileSizeCommitLog=4096", "maxMessageSize=1000")


def test_binary_header_with_a_wrong_length_is_left() -> None:
    data = frame(310, {**send_fields(), "i": KEY}, b"x", Encoding.ROCKETMQ, 9, 0)

    def shorter(header: bytes) -> bytes:
        return header[:17] + (len(header) - 22).to_bytes(4, "big") + header[21:]

    odd = [with_header(data, shorter), with_header(data, lambda header: header + b"\0")]
    assert taken_counts([data, *odd]) == [3, 0, 0]
    for odd_frame in odd:
        check([data, odd_frame, data], 1 << 20)


def test_filler_has_room_after_the_last_record() -> None:
    fields = {**send_fields(), "i": KEY}

    async def scenario(session: Session) -> list[bool]:
        await session.send("T")
        sender, store = session.node.broker.sender, session.node.store
        (connection,) = session.node.servers[0].connections

        def is_taken(size: int) -> bool:
            data = frame(310, fields, b"x" * size, Encoding.JSON, 9, 0)
            at = sender.take(data, 0, connection)
            sender.end_of_run(connection)
            return at == len(data)

        before = store.max_offset
        assert is_taken(1)
        distance = store.max_offset - before - 1
        room = 4096 - store.max_offset % 4096 - BLANK_SIZE - distance
        answers = [is_taken(room + 1), is_taken(room)]
        assert store.max_offset == 4096 - BLANK_SIZE
        return answers

    assert node_run(scenario, "mappedFileSizeCommitLog=4096", *BODY).value == [False, True]
