"""The Python and the native bodies of scan and index on the same bytes, each with tables of its
own: everything has to be the same.

    python -m tests.support.log_native_fuzz SEED COUNT BUILD

does it without pytest, so that a build with AddressSanitizer can be loaded into it.
"""

import struct
import sys
import zlib
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.node.store.indexfile import ENTRY, HEADER, IndexFile
from rocketbed.node.store.log_bodies import LogBodies
from rocketbed.node.store.scan import RecordScanner, Scanned
from rocketbed.wire.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from tests.support.native_builds import fuzzed, starved

BASE = 1 << 40
CRC_NAME = b"__CRC32#\x01"
TOPICS = [b"T", b"U", "\u6807\u7b7e".encode(), b"L" * 130, b"", b"\xff", b"a/b", b"Z\0", b"."]
DELAYS = b"SCHEDULE_TOPIC_XXXX"
UNIQUE = [b"AB12", b"7F00000100002A9F", b"", b"\xff\xfe", "\u6807".encode(), b"a b", b"AB12\x01c"]
AROUND = [
    b"",
    b"TAGS\x01TagA\x02",
    b"TAGS\x01\x02",
    "TAGS\x01\u6807\x02KEYS\x01k1  k2 \x02".encode(),
    b"KEYS\x01\xff k\x02WAIT\x01true\x02",
    b"UNIQ_KEY\x01first\x02",
    b"NOTUNIQ_KEY\x01x\x02",
    b"DELAY\x013\x02",
    b"INNER_NUM\x012\x02",
    b"own\x01" + b"v" * 900 + b"\x02",
    b"a\x01b",
    b"z\x01\0\x02",
    b"z\x01" + bytes(1100) + b"\x02",
]


def properties(random: Random) -> bytes:
    front, back = (random.choice(AROUND) if random.random() < 0.4 else b"" for _ in range(2))
    unique = b"UNIQ_KEY\x01%s\x02" % random.choice(UNIQUE) if random.random() < 0.9 else b""
    if random.random() < 0.02:  # short of a whole checksum
        return CRC_NAME + b"12\x02"
    whole = front + unique + (back or random.choice((b"", b"TAGS\x01TagA\x02")))
    return whole[:-1] if random.random() < 0.05 else whole


def record(random: Random, physical: int) -> bytes:
    """A record of any kind that a log holds, most of them plain."""
    is_odd = random.random() < 0.3
    flag = random.choice((0x4, 0x8, 0xC, 0x10, 0x20, 0x30, 0x80, 0x1)) if is_odd else 0
    topic = random.choice((*TOPICS, DELAYS)) if random.random() < 0.3 else random.choice(TOPICS[:4])
    is_wide = random.random() < (0.95 if len(topic) > 127 else 0.1)
    body = random.choice((b"", b"body", random.randbytes(40), bytes(random.randrange(700))))
    crc = zlib.crc32(body) & 0x7FFFFFFF
    if random.random() < 0.02:
        crc ^= 1
    queue_id = -1 if random.random() < 0.03 else random.randrange(4)
    text, store_ms = properties(random), random.choice((1, 1_700_000_000_123, -5))
    hosts = [bytes(20 if flag & bit else 8) for bit in (0x10, 0x20)]
    tail = struct.pack(">q", store_ms) + hosts[1] + struct.pack(">iqi", 0, 0, len(body)) + body
    tail += struct.pack(">H" if is_wide else ">B", len(topic)) + topic
    with_crc = random.random() < 0.1
    size = 48 + len(hosts[0]) + len(tail) + 2 + len(text) + 20 * with_crc
    tail += struct.pack(">H", len(text) + 20 * with_crc) + text
    magic = MAGIC_V2 if is_wide else MAGIC_V1
    head = struct.pack(">5i2qiq", size, magic, crc, queue_id, 0, 7, physical, flag, 1)
    whole = head + hosts[0] + tail
    if with_crc:
        value = zlib.crc32(whole) & 0x7FFFFFFF ^ (random.random() < 0.1)
        whole += CRC_NAME + str(value)[::-1].ljust(10, "0").encode() + b"\x02"
    return whole


def log(random: Random) -> bytes:
    """A piece of a log, which may be damaged, cut off, or end in a blank record."""
    data = b""
    for _ in range(random.randrange(1, 12)):
        data += record(random, BASE + len(data))
    if random.random() < 0.3:
        at = random.randrange(len(data))
        change = random.choice((random.randbytes(1), b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
        data = data[:at] + change + data[at + len(change) :]
    if random.random() < 0.2:
        data = data[: random.randrange(len(data))]
    if random.random() < 0.3:
        data += struct.pack(">2i", random.choice((8, 40, 1000)), MAGIC_BLANK)
    return data + bytes(random.choice((0, 0, 4, 8, 600)))


class Scans:
    """Two scanners that read the same, and keep what they have learned."""

    def __init__(self, bodies: LogBodies) -> None:
        self.scanned_bytes = 0
        """Records that the native body took."""

        def counted(*args: Any) -> int:
            before = len(args[-1])
            scanned = bodies.scan(*args)
            self.scanned_bytes += len(args[-1]) - before
            return scanned

        self._bodies = bodies._replace(scan=counted)
        self.index_tags = False
        self.forget()

    def forget(self, *, check_crc: bool = True) -> None:
        def scanner(bodies: LogBodies | None) -> RecordScanner:
            return RecordScanner(check_crc=check_crc, delays_ms=[10, 20], bodies=bodies)

        self.both = scanner(None), scanner(self._bodies)

    def check(self, data: bytes, beyond: int, zero_rule_from: int | None) -> Scanned:
        """`beyond`: bytes of the segment behind these."""
        end = BASE + len(data) + beyond
        results = [
            each.scan(data, BASE, segment_end=end, zero_rule_from=zero_rule_from)
            for each in self.both
        ]
        assert results[0] == results[1], (data, beyond, zero_rule_from)
        kinds = [[list(map(type, entry)) for entry in one.entries] for one in results]
        assert kinds[0] == kinds[1]
        assert all(type(entry) is Entry for entry in results[1].entries)
        tables = [(each._topics, each._shapes) for each in self.both]
        assert tables[0] == tables[1]
        return results[1]

    def fuzz(self, random: Random) -> None:
        data = log(random)
        for scan in self.both:
            scan.index_tags = self.index_tags
        zero_rule_from = random.choice((None, 0, BASE, BASE + len(data) // 2))
        for _ in range(2):  # the second time with what the first has taught
            self.check(data, random.choice((0, 4096, 4096, -30)), zero_rule_from)


class MemoryFile:
    """A file of the seam `File` whose reads can fail."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.fails = False

    def read_at(self, offset: int, size: int) -> bytes:
        if self.fails:
            raise OSError(5, "no such sector")
        return bytes(self.data[offset : offset + size])

    def write_at(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data


class OnePool:
    """A pool of one file."""

    def __init__(self, file: MemoryFile) -> None:
        self.file = file

    def get(self, path: str) -> MemoryFile:
        return self.file


SLOTS, ROOM = 2500, 300
LEAST = "jllgx0D"
"""With topic `T`, the one hash that has no absolute value: -2**31."""
KEYS = [
    LEAST,
    "AB12",
    "7F00000100002A9F0000000000001",
    "",
    "\u6807",
    "\ud83d",
    "\U0001f600",
    "a" * 99,
]


class Indexes:
    """Two index files that are given the same keys."""

    def __init__(self, bodies: LogBodies) -> None:
        self._bodies = bodies
        self.forget()

    def forget(self) -> None:
        self.files = [MemoryFile(HEADER.size + 4 * SLOTS + ENTRY.size * ROOM) for _ in range(2)]
        self.both = [
            IndexFile(OnePool(file), "index", slots=SLOTS, entries=ROOM, bodies=bodies)  # type: ignore[arg-type]
            for file, bodies in zip(self.files, (None, self._bodies), strict=True)
        ]

    def check(self, waiting: list[Entry], *, fails: bool = False) -> None:
        """Put all, over a read that fails if asked to; the rest is left where the file is full."""
        results = []
        for file, index in zip(self.files, self.both, strict=True):
            steps, place, file.fails = [], (0, 0), fails
            for _ in range(2):
                place = index.put_entries(waiting, *place)
                failure, index.failure = index.failure, None
                steps.append((place, failure is None, index.header, bytes(index._buffer)))
                file.fails = False
            results.append((steps, index._pages, index._dirty_pages, index.full))
        assert results[0] == results[1], waiting

    def write(self) -> None:
        for index in self.both:
            index.write()
        assert self.files[0].data == self.files[1].data

    def fuzz(self, random: Random) -> None:
        waiting = [
            Entry(
                random.choice(("T", "\u6807", "topic" * 20)),
                0,
                0,
                random.choice((0, 5, 2**40, 2**62)),
                100,
                0,
                random.choice((-1, 0, 1_700_000_000_000, 1_700_000_100_999, 2**50)),
                tuple(random.choice((*KEYS, str(random.random()))) for _ in range(number)),
                ONE_UNIT,
            )
            for number in random.choices(range(4), k=random.randrange(8))
        ]
        self.check(waiting, fails=random.random() < 0.2)
        if random.random() < 0.2:
            self.write()
        if random.random() < 0.1:  # what damage, or a start, may leave
            page = random.choice((0, 1, 2))
            slot = random.randrange(452)
            for index in self.both:
                if page in index._pages:
                    index._pages[page][slot] = -1 if slot % 2 else ROOM


def bodies_of(module: ModuleType) -> LogBodies:
    return LogBodies(module.scan, module.put_keys)


def fuzz(module: ModuleType, seed: int, count: int) -> int:
    """Records that the native body took, of what a seed makes."""
    random = Random(seed)
    scans, indexes = Scans(bodies_of(module)), Indexes(bodies_of(module))
    for number in range(count):
        if number % 100 == 0:
            scans.forget(check_crc=number % 300 != 0)
            indexes.forget()
        if number % 30 == 0:
            scans.index_tags = not scans.index_tags
        scans.fuzz(random)
        indexes.fuzz(random)
    return scans.scanned_bytes


def starve(module: ModuleType) -> int:
    """Let each allocation of both functions fail in turn."""
    random = Random(1)
    data = b"".join(record(random, BASE) for _ in range(1))
    while not (scanned := RecordScanner(check_crc=True, delays_ms=[]).scan(
        data, BASE, segment_end=BASE + 4096
    )).entries or not scanned.entries[0].keys:  # fmt: skip
        data = record(random, BASE)
    learned = RecordScanner(check_crc=True, delays_ms=[], bodies=bodies_of(module))
    learned.scan(data, BASE, segment_end=BASE + 4096)

    def scan() -> object:
        entries: list[Entry] = []
        caches = learned._topics, learned._shapes, learned._tag_and_keys
        return module.scan(data, 0, BASE, BASE + 4096, True, *caches, entries), entries

    def put() -> Callable[[], object]:
        index = Indexes(bodies_of(module)).both[1]
        index.put_entries([scanned.entries[0]], 0, 0)
        state = index._pages, index._dirty_pages, index._buffer, SLOTS, ROOM, index.next_entry
        return lambda: (module.put_keys([scanned.entries[0]] * 3, 0, 0, *state, 1, 0, 0), state)

    return starved(lambda: scan) + starved(put)


if __name__ == "__main__":
    seed, count, path = sys.argv[1:]
    fuzzed("log_native", path, lambda module: fuzz(module, int(seed), int(count)), starve)
