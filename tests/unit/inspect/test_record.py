"""A record: the format's own vectors, and each reason why bytes are not a record."""

import struct
import zlib
from dataclasses import replace

import pytest

from rocketbed.inspect.bodies import unpack_body, unpack_inner_batch
from rocketbed.inspect.properties import (
    DispatchProperties,
    TopicHash,
    delay_levels,
    index_key_hash,
    java_hash,
    parse_properties,
    tag_code,
)
from rocketbed.inspect.query import offset_message_id, show_host
from rocketbed.inspect.record import (
    Fault,
    Record,
    blank_size,
    body_crc,
    crc_digits,
    dissect,
    scan_record,
)
from tests.support.stores import Spec, encode

WORKED = bytes.fromhex(
    "00000076daa320a7516fa58a000000000000000000000000000000000000000000000000"
    "00000000000001a1f6ebd74a7f000001000004d2000001a1f6ebd7c77f00000100002a9f"
    "000000000000000000000000"
    "00000005626f64793001540015"
    "4b455953016b31206b32025441475301546167"
    "4102"
)
"""The record of store.md 2.11, which a real broker wrote."""
LEVELS = delay_levels("1s 5s 10s 30s 1m 2h")


def parsed(data: bytes, offset: int = 0) -> Record:
    record = dissect(data, 0, offset)
    assert isinstance(record, Record), record
    assert scan_record(data, memoryview(data), 0, offset) == record.scanned
    return record


def fault(data: bytes, offset: int = 0) -> Fault:
    """Reason why these bytes are not a record; the fast way must refuse them too."""
    fault_found = dissect(data, 0, offset)
    assert isinstance(fault_found, Fault), fault_found
    assert scan_record(data, memoryview(data), 0, offset) is None
    return fault_found


def sample(**fields: object) -> bytes:
    spec = replace(Spec(properties=(("TAGS", "a"),)), **fields)  # type: ignore[arg-type]
    return encode(spec, offset=0, queue_offset=3, store_ms=1_700_000_000_000)


def test_the_worked_record() -> None:
    record = parsed(WORKED)
    assert (record.size, record.topic, record.queue_id, record.body) == (118, "T", 0, b"body0")
    assert record.properties == {"KEYS": "k1 k2", "TAGS": "TagA"}
    assert show_host(record.born_host) == "/127.0.0.1:1234"
    assert show_host(record.store_host) == "/127.0.0.1:10911"


def test_the_formats_own_vectors() -> None:
    assert body_crc(b"123456789") == 1274296614
    assert body_crc(b"") == 0
    assert java_hash("TagA") == 2598919
    assert index_key_hash("T", "k1") == 2539445
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert crc_digits(13220999) == b"9990223100"


def test_index_hash_without_an_absolute_value_is_zero() -> None:
    key = "k" * 0 + "polygenelubricants"
    assert java_hash(key) == -(1 << 31)
    # The same string as topic and key, split at the sign between them, would hash otherwise;
    # so the rule is tested where it is decided.
    hashed = TopicHash("T")
    assert hashed.key_hash(b"k1") == 2539445
    assert all(hashed.key_hash(b"%d" % number) >= 0 for number in range(2000))


@pytest.mark.parametrize(
    "key", ["k", "0123456789abcdef", "0123456789abcdefg", "x" * 600, "订单-1", "😀" * 9, ""]
)
def test_remembered_prefixes_do_not_change_hashes(key: str) -> None:
    hashed = TopicHash("Topic")
    for text in (key, key + "1", key):
        assert hashed.key_hash(text.encode()) == index_key_hash("Topic", text)


def test_message_id_of_a_place() -> None:
    record = replace(parsed(WORKED), offset=118)
    assert offset_message_id(record) == "7F00000100002A9F0000000000000076"


def test_properties_as_readers_take_them() -> None:
    raw = b"a\x01b\x02\x02x\x02noseparator\x02\x01v\x02n\x01\x02d\x011\x02d\x012\x02last\x01z"
    assert parse_properties(raw) == {"a": "b", "d": "2", "last": "z"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"TAGS\x01t\x02KEYS\x01a b\x02UNIQ_KEY\x01u\x02",
        b"XTAGS\x01no\x02TAGS\x01t",
        b"TAGS\x01one\x02TAGS\x01two\x02",
        b"TAGS\x01one\x02TAGS\x01\x02",
        b"KEYS\x01 a  b \x02",
        b"KEYS\x01TAGS\x02",
    ],
)
def test_the_three_wanted_properties_are_the_parsed_ones(raw: bytes) -> None:
    dispatched, parsed = DispatchProperties(raw), parse_properties(raw)
    assert dispatched.tags.decode() == parsed.get("TAGS", "")
    assert dispatched.keys.decode() == parsed.get("KEYS", "")
    assert dispatched.unique_key.decode() == parsed.get("UNIQ_KEY", "")
    parts = [part for part in parsed.get("KEYS", "").split(" ") if part]
    unique = [parsed["UNIQ_KEY"]] if "UNIQ_KEY" in parsed else []
    assert [key.decode() for key in dispatched.index_keys()] == unique + parts


def test_tag_code_is_a_hash_or_delivery_time() -> None:
    assert tag_code("T", b"TagA", b"", 5, LEVELS) == 2598919
    assert tag_code("T", b"", b"", 5, LEVELS) == 0
    delay = b"DELAY\x012\x02"
    assert tag_code("SCHEDULE_TOPIC_XXXX", b"TagA", delay, 5, LEVELS) == 5005
    assert tag_code("T", b"TagA", delay, 5, LEVELS) == 2598919
    assert tag_code("SCHEDULE_TOPIC_XXXX", b"", b"DELAY\x0199\x02", 5, LEVELS) == 7_200_005
    assert tag_code("SCHEDULE_TOPIC_XXXX", b"", b"DELAY\x010\x02", 5, LEVELS) == 0


def test_short_bytes() -> None:
    assert fault(b"").rule == "record-short"
    assert fault(WORKED[:7]).rule == "record-short"
    assert fault(WORKED[:-1]).rule == "record-short"
    assert fault(struct.pack(">i", 20) + WORKED[4:]).rule == "record-short"


def test_zeros_and_foreign_magic() -> None:
    assert fault(bytes(200)).rule == "record-magic"
    assert fault(WORKED[:4] + b"\xda\xa3\x20\xa8" + WORKED[8:]).rule == "record-magic"


def test_negative_and_wild_lengths() -> None:
    body_at = 84
    assert fault(WORKED[:body_at] + b"\xff\xff\xff\xff" + WORKED[88:]).rule == "record-body"
    assert fault(WORKED[:body_at] + b"\0\0\1\0" + WORKED[88:]).rule == "record-body"
    topic_at = 93
    assert fault(WORKED[:topic_at] + b"\x80" + WORKED[94:]).rule == "record-topic"
    assert fault(WORKED[:95] + b"\xff\xff" + WORKED[97:]).rule == "record-properties"


def test_lengths_that_do_not_add_up() -> None:
    data = struct.pack(">i", 120) + WORKED[4:] + b"\0\0"
    assert fault(data) == Fault("record-size", "length 120, but its parts add up to 118", 120)


def test_a_changed_body() -> None:
    assert fault(WORKED.replace(b"body0", b"body1")).rule == "record-crc"


def test_an_empty_body_has_no_checksum() -> None:
    data = bytearray(sample(body=b""))
    data[8:12] = b"\1\2\3\4"
    assert parsed(bytes(data)).body == b""


def test_misplaced_record() -> None:
    assert fault(WORKED, offset=118).rule == "record-offset"


def test_ipv6_bits_that_lie() -> None:
    data = bytearray(WORKED)
    data[39] |= 0x10
    assert isinstance(dissect(bytes(data), 0, 0), Fault)
    assert scan_record(bytes(data), memoryview(bytes(data)), 0, 0) is None


def with_property_crc(data: bytes, crc: int | None = None) -> bytes:
    """The record with the property of store.md 2.7 at its end."""
    properties_at = data.rindex(b"TAGS")
    size = len(data) - properties_at + 20
    data = struct.pack(">i", len(data) + 20) + data[4 : properties_at - 2]
    data += struct.pack(">h", size) + b"TAGS\x01a\x02"
    digits = crc_digits(zlib.crc32(data) if crc is None else crc)
    return data + b"__CRC32#\x01" + digits + b"\x02"


def test_the_crc_property_covers_the_whole_record() -> None:
    data = with_property_crc(sample())
    assert "__CRC32#" in parsed(data).properties
    changed = data.replace(b"TAGS\x01a", b"TAGS\x01b")
    assert fault(changed).rule == "record-property-crc"
    assert fault(with_property_crc(sample(), crc=1)).rule == "record-property-crc"


def test_property_ending_like_the_checksum_is_not_it() -> None:
    for name, rule in (("x__CRC32#", None), ("__CRC32#", "record-property-crc")):
        data = sample(properties=((name, "0123456789"),))
        if rule is None:
            assert parsed(data).properties[name] == "0123456789"
            assert scan_record(data, memoryview(data), 0, 0) is not None
        else:
            assert fault(data).rule == rule
            assert scan_record(data, memoryview(data), 0, 0) is None


def test_an_erased_sector_of_properties() -> None:
    """No checksum covers what a lost sector of a fresh segment leaves (T5)."""
    data = sample(properties=(("K", "x" * 1500),))
    assert parsed(data).size == len(data)
    erased = data[:512] + bytes(512) + data[1024:]
    assert fault(erased).rule == "record-zero-sector"
    shifted = data[:600] + bytes(100) + data[700:]
    assert parsed(shifted).properties["K"].count("\0") == 100


def test_fillers() -> None:
    assert blank_size(struct.pack(">iI", 40, 0xCBD43194), 0) == 40
    assert blank_size(WORKED, 0) is None
    assert blank_size(b"\0" * 4, 0) is None


def item(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">5i", size, 0, 0, 7, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def test_inner_batches() -> None:
    both = item(b"one", b"a\x01b\x02") + item(b"", b"")
    items = unpack_inner_batch(both)
    assert items is not None
    assert [(i.number, i.flag, i.body, i.properties) for i in items] == [
        (0, 7, b"one", {"a": "b"}),
        (1, 7, b"", {}),
    ]
    assert all(unpack_inner_batch(both[:cut]) is None for cut in range(1, 29))


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("body", [b"", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd\x04", b"x" * 40])
def test_bodies_that_cannot_be_unpacked(kind: int, body: bytes) -> None:
    unpacked = unpack_body(body, 1 | kind << 8)
    assert unpacked in (None, b"")
    assert unpack_body(body, kind << 8) == body
