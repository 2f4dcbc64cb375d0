"""Both bodies of `take` on the same bytes, with caches of their own: everything has to be the same.

    python -m tests.support.native_fuzz SEED COUNT BUILD

does it for frames that a seed damages, without pytest, so that a build with AddressSanitizer can be
loaded into it.
"""

import sys
from random import Random
from types import ModuleType
from typing import Any

import orjson

from rocketbed.node.broker import plain_run
from rocketbed.node.broker.plain_run import Body, EndOfLog
from rocketbed.node.broker.plain_shapes import Headers, Meanings, Names
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.entry import Entry
from rocketbed.node.store.run import LogTail
from rocketbed.wire.command import Encoding, request
from rocketbed.wire.frame import HEAD, encode
from rocketbed.wire.message import pack_host
from rocketbed.wire.properties import PROPERTIES_MAX
from rocketbed.wire.send_headers import FORMS, Cut
from tests.support.native_builds import fuzzed, starved
from tests.support.wire_sessions import SESSIONS, recorded_frames

SUFFIX = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01c\x02"
TOPICS = {"T": 4, "U": 8, "BenchmarkTest": 8, "WireTopic": 8, "\u6807\u7b7e": 4, "L" * 130: 4}
"""Topics that need no more checks, with the number of their queues."""


def end_of_log(**changes: Any) -> EndOfLog:
    end = EndOfLog(
        position=123_456,
        limit=1 << 30,
        now_ms=1_700_000_000_123,
        store_host=pack_host("127.0.0.1", 10911),
        host_text=b"7F00000100002A9F",
        body_max=4 << 20,
        record_max=5 << 20,
        index_tags=True,
    )
    return end._replace(**changes)


class Side:
    """A body, and what it has learned so far."""

    def __init__(self, take: Body, failing: type[Exception] | None = None) -> None:
        """`failing`: what cutting a header in msgpack raises."""
        self.take = take
        tail = LogTail(StoreConfig(root="/store"))
        meanings = Meanings(TOPICS)
        self.headers = {int(kind): Headers(form, tail, meanings) for kind, form in FORMS.items()}
        if failing is not None:

            def fail(header: bytes) -> Cut:
                raise failing

            shapes = self.headers[Encoding.MSGPACK]
            shapes.form = shapes.form._replace(cut=fail)
        self.names = Names(SUFFIX)
        self.next_offsets = {("T", 1): 7, ("U", 0): 2**40}

    def outcome(self, data: bytes, at: int, born_host: bytes, end: EndOfLog) -> tuple[Any, ...]:
        """Return everything that a call gives, and everything that it changes."""
        offsets = {("T", 2): 5}
        tables = self.headers, self.names, offsets, self.next_offsets
        try:
            result = self.take(data, at, *tables, born_host, end)
        except Exception as exc:
            return None, type(exc), str(exc)
        kinds = [list(map(type, entry)) for entry in result[2]]
        assert all(type(entry) is Entry for entry in result[2])
        return result, kinds, offsets, self.headers, self.names, self.next_offsets


class Pair:
    """Both bodies, asked the same one after the other."""

    def __init__(self, native: ModuleType, failing: type[Exception] | None = None) -> None:
        self._take, self._failing = native.take, failing
        self.forget()
        self.taken_bytes = 0
        """Bytes that were taken, of all that was asked."""
        self.raised: object = None
        """What the last call raised."""

    def forget(self) -> None:
        """Begin with empty caches."""
        self._python = Side(plain_run.take, self._failing)
        self._native = Side(self._take, self._failing)

    def check(
        self,
        data: bytes,
        at: int = 0,
        born_host: bytes = b"\x7f\0\0\1\0\0\x12\x34",
        end: EndOfLog | None = None,
    ) -> int:
        """Return the start of the first frame left over; assert that both bodies agree."""
        end = end_of_log() if end is None else end
        first = self._python.outcome(data, at, born_host, end)
        second = self._native.outcome(data, at, born_host, end)
        assert first == second, (data, at)
        start_left: int = at if first[0] is None else first[0][0]
        self.raised = first[1] if first[0] is None else None
        self.taken_bytes += start_left - at
        return start_left

    def native_alone(self, data: bytes) -> list[Entry]:
        """Entries of the messages that it takes."""
        side = self._native
        offsets: dict[tuple[str, int], int] = {}
        tables = side.headers, side.names, offsets, side.next_offsets
        return side.take(data, 0, *tables, bytes(8), end_of_log())[2]

    def shapes(self) -> list[object]:
        """Contents of the native body's caches."""
        side = self._native
        shapes = [shape for headers in side.headers.values() for shape in headers.values()]
        parts = [part for shape in shapes for part in shape]
        return [*side.names, *side.names.values(), *side.headers.values(), *shapes, *parts]

    def check_all(self, data: bytes) -> None:
        """The same at each frame of `data`, as a connection asks again behind one that was left."""
        at = 0
        while at + 8 <= len(data):
            at_left = self.check(data, at)
            at = at_left + 4 + int.from_bytes(data[at_left : at_left + 4], "big")


def send(fields: dict[str, str], body: bytes, encoding: Encoding, opaque: int, flag: int) -> bytes:
    command = request(310, fields, body, encoding=encoding)
    command.opaque, command.flag = opaque, flag
    return encode(command)


def fields_of(topic: str, queue_id: int, properties: str, **changes: str) -> dict[str, str]:
    values = "group", topic, "TBW102", "4", str(queue_id), "0", "1700000000000", "0", properties
    fields = dict(zip("abcdefghi", values, strict=True))
    return {**fields, "j": "0", "k": "false", "m": "false", **changes}


STRINGS = [
    "UNIQ_KEY\x01AB12\x02",
    "UNIQ_KEY\x01AB12",
    "UNIQ_KEY\x017F000001000A18B4AAC2000000000003\x02WAIT\x01true\x02TAGS\x01TagA",
    'KEYS\x01k1  k2 \x02UNIQ_KEY\x01AB12\x02own\x01\u6807\u7b7e \U0001f600\\"/\b\x02',
    "UNIQ_KEY\x01AB12\x02TAGS\x01\u6807\x02KEYS\x01 \x02",
    "UNIQ_KEY\x01AB12\x02TAGS\x01\x02KEYS\x01\x02",
    "UNIQ_KEY\x01AB12\x02own\x01\x00\x7f\x80\x02",
    "".join(f"n{number}\x01v\x02" for number in range(300)) + "UNIQ_KEY\x01AB12",
    *(
        f"long\x01{'x' * (PROPERTIES_MAX - len(SUFFIX) - size)}\x02UNIQ_KEY\x01A\x02"
        for size in (16, 17, 18)
    ),
]
ODD_STRINGS = [
    "UNIQ_KEY\x01AB12\x02WAIT\x01false\x02",
    "UNIQ_KEY\x01AB12\x02WAIT\x01\x02",
    "UNIQ_KEY\x01a-b\x02",
    "UNIQ_KEY\x01\x02",
    "UNIQ_KEY\x01\u00e9\x02",
    "UNIQ_KEY\x01AB12\x02DELAY\x011\x02",
    "UNIQ_KEY\x01AB12\x02own\x02",
    "UNIQ_KEY\x01AB12\x02own",
    "UNIQ_KEY\x01AB12\x02own\x01a\x01b\x02",
    "own\x02UNIQ_KEY\x01AB12\x02b\x01c\x01d\x02",
    "TAGS\x01A\x02own\x02x\x01y\x01UNIQ_KEY\x01AB12\x02",
    "",
    "\x01",
    "\x02",
]
ODD_FIELDS = [
    {"e": "4"},
    {"e": "-1"},
    {"f": "4"},
    {"f": "-1"},
    {"f": str(2**31)},
    {"h": str(2**31)},
    {"g": "-1"},
    {"g": "9" * 19},
    {"g": str(2**63)},
    {"j": "1"},
    {"m": "true"},
    {"a": "p" * 2000},
    {"b": "Unknown"},
]


def plain() -> list[bytes]:
    """Frames that are taken, unless a limit is in the way, in every form that clients have."""
    fields = [fields_of("T", 1, string) for string in STRINGS]
    fields += [fields_of(topic, queue_id, STRINGS[2]) for topic in TOPICS for queue_id in (0, 3)]
    fields += [fields_of("U", 7, STRINGS[3], h="-2147483648", f="1", g="9" * 13)]
    bodies = [b"body" * (turn + 1) for turn in range(len(fields))]
    frames = [
        send(found, body, encoding, opaque, flag)
        for encoding in Encoding
        for found, body in zip(fields, bodies, strict=True)
        for opaque, flag in ((0, 0), (999_999_999, 2))
    ]
    frames += [fronted(frame) for frame in frames if frame[4] == 0]
    return frames + [send(fields[0], b"x", kind, -(2**31), 0) for kind in Encoding if kind]


def odd() -> list[bytes]:
    """Frames that each are just not plain, or at some border; and those of real clients."""
    fields = [fields_of("T", 1, string) for string in ODD_STRINGS]
    fields += [fields_of("T", 1, STRINGS[0], **changes) for changes in ODD_FIELDS]
    fields += [fields_of("T", 1, STRINGS[0], g="9" * digits) for digits in (1, 12, 14, 18)]
    frames = [send(found, b"x", kind, 9, 0) for kind in Encoding for found in fields]
    json = send(fields_of("T", 1, STRINGS[0]), b"x", Encoding.JSON, 9, 0)
    for old, new in JSON_CHANGES:
        assert old in json
        frames.append(reframed(json[8:-1].replace(old, new, 1), b"x", json[4]))
    binary = send(fields_of("T", 1, BINARY_STRING), b"x", Encoding.ROCKETMQ, 9, 0)
    for old, new in BINARY_CHANGES:
        assert old in binary
        frames.append(reframed(binary[8:-1].replace(old, new, 1), b"x", binary[4]))
    for flag in (1, 4, 3):
        frames += [send(fields[0], b"x", kind, 9, flag) for kind in Encoding]
    frames += [send(fields_of("T", 1, STRINGS[0]), b"", kind, 9, 0) for kind in Encoding]
    frames += [frame[:-1] for frame in plain()[:3]] + [json[:4] + b"\3" + json[5:]]
    recorded = (frame for name in SESSIONS for frame in recorded_frames(name))
    return frames + [frame.data for frame in recorded if frame.is_from_client]


JSON_CHANGES = [
    *(
        (b'"opaque":9', b'"opaque":' + opaque)
        for opaque in (b"09", b"1000000000", b"-9", b"", b"9 ")
    ),
    *((b'"g":', other) for other in (b'"g":"1","g":', b'"G":', b'"g" :', b'"i":"a","g":')),
    *(
        (b"AB12", text)
        for text in (b"AB\\u0031", b"\\u00e9", b"\\u0080", b"\\ud83d\\ude00", b"\\ud83d")
    ),
    *(
        (b"AB12", text)
        for text in (b"\\n", b"\\", b"\\x", b"\\u00", b"\\u00g1", b"\n", b"\x7f", b"\x80")
    ),
    *(
        (b"AB12", b"AB12\\u0002own\\u0001" + text)
        for text in (b"\\u00e9", b"\\/\\b\\f\\n\\r\\t\\\\")
    ),
    *(
        (b"AB12", b"AB12\\u0002own\\u0001" + text)
        for text in (b"\xc3\xa9", b"\xed\xa0\x80", b"\\uD83D\\uDE00")
    ),
    *(
        (b"AB12", b"AB12\\u0002own\\u0001" + text)
        for text in (b"\\u007F\\u004a", b"\\u0000", b"\0", b"\\v")
    ),
]


BINARY_STRING = "UNIQ_KEY\x01AB12\x02own\x01xyz\x02"
_LENGTH = len(BINARY_STRING)
BINARY_CHANGES = [
    *((b"xyz", text) for text in (b"\xc3\xa9z", b"\xed\xa0\x80", b"\xff\xff\xff", b"\0\0\0")),
    *((bytes((_LENGTH,)) + b"UNIQ", size + b"UNIQ") for size in (b"\xff", b"\x7f", b"\0", b"\x01")),
    *((b"\0\x01" + name, b"\0\x01z") for name in (b"g", b"i", b"b")),
    *((b"\0\0\0\r1700000000000", b"\0\0\0\r17000000000" + end) for end in (b"0x", b" 0")),
]


def reframed(header: bytes, body: bytes, kind: int) -> bytes:
    return HEAD.pack(4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def fronted(frame: bytes) -> bytes:
    """A JSON header's members in the order of Go's client, after the code."""
    length = int.from_bytes(frame[5:8], "big")
    members = orjson.loads(frame[8 : 8 + length])
    first = {"code": members.pop("code"), "opaque": members.pop("opaque")}
    return reframed(orjson.dumps({**first, **members}), frame[8 + length :], 0)


SPLICES = [
    b'"',
    b"\\",
    b"\\u0001",
    b"\\u0002",
    b"\\u00e9",
    b"\\ud83d\\ude00",
    b"\\ud83d",
    b"\\n",
    b"\x01",
    b"\x02",
    b"\xff",
    b"\x00",
    b"\xed\xa0\x80",
    b"{",
    b",",
    b'"g":"',
    b'"i":"',
    b'"opaque":',
    b"\0\x01g\0\0\0\r",
    b"\0\x01i",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xc0\x80",
    b"9" * 20,
]


def damaged(random: Random, frame: bytes) -> bytes:
    """Bytes changed, put in, taken out or cut off; the lengths may be right all the same."""
    if len(frame) < 8 or random.random() < 0.2:
        at = random.randrange(9)
        return frame[:at] + random.randbytes(random.randrange(3)) + frame[at + 1 :]
    header, data = int.from_bytes(frame[5:8], "big"), frame[8:]
    for _ in range(random.randrange(1, 3)):
        at, cut = random.randrange(header + 2), random.choice((0, 0, 1, 2, 8, 100))
        put = random.choice((random.choice(SPLICES), random.randbytes(random.randrange(4))))
        data = data[:at] + put + data[at + cut :]
        header = max(0, header + len(put) - cut)
    data = reframed(data[:header], data[header:], frame[4])
    return data[: random.randrange(len(data))] if random.random() < 0.1 else data


def tight(random: Random, entry: Entry) -> EndOfLog:
    """Limits about a record's own size and end."""
    off, size = random.choice((-1, 0, 1)), entry.size
    changes: dict[str, Any] = random.choice(
        ({"limit": entry.physical_offset + size + off}, {"record_max": size + off})
    )
    return end_of_log(**changes, index_tags=random.random() < 0.5)


def fuzz(native: ModuleType, seed: int, count: int) -> Pair:
    """Reads of a few frames each, damaged and whole ones, under limits that are wide or tight."""
    random = Random(seed)
    good, all_kinds = plain(), plain() + odd()
    pair = Pair(native)
    for frame in all_kinds:
        for size in (len(frame), len(frame) - 1):
            pair.check(frame[:size])
    for number in range(count):
        if number % 500 == 0:
            pair.forget()
        read = b"".join(
            damaged(random, random.choice(all_kinds)) if random.random() < 0.2 else frame
            for frame in random.choices(random.choice((good, all_kinds)), k=random.randrange(1, 6))
        )
        pair.check_all(read)
        entries = pair.native_alone(read)
        if entries:
            pair.check(read, 0, random.randbytes(8), tight(random, random.choice(entries)))
        hosts = random.choice((bytes(8), bytes(20)))
        narrow = end_of_log(store_host=hosts, body_max=random.randrange(40))
        pair.check(read, 0, bytes(20), narrow)
        pair.check(read, random.randrange(len(read) + 9))
    return pair


def starve(native: ModuleType) -> int:
    """Let each allocation of a call fail in turn."""
    # Nothing that orjson would have to read, which does not live through it.
    string = "KEYS\x01k1 k2\x02UNIQ_KEY\x01AB12\x02TAGS\x01\u6807"
    kinds = [Encoding.JSON, Encoding.ROCKETMQ, Encoding.MSGPACK]
    if sys.version_info >= (3, 12):
        # That calls Python, whose interpreter then tells itself for ever that there is no memory.
        kinds.remove(Encoding.MSGPACK)
    read = b"".join(send(fields_of("T", 1, string), b"x", kind, 9, 0) for kind in kinds)
    side = Side(native.take)
    tables = side.headers, side.names

    def take() -> object:
        return side.take(read, 0, *tables, {("T", 2): 5}, {}, bytes(8), end_of_log())

    return starved(lambda: take)


if __name__ == "__main__":
    seed, count, path = sys.argv[1:]
    fuzzed(
        "plain_native", path, lambda module: fuzz(module, int(seed), int(count)).taken_bytes, starve
    )
