"""Records, ids, hashes and batches against the vectors of the specifications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.node.store.run import crc_property
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.javahash import extend, index_hash, java_hash, key_state, tag_code
from rocketbed.wire.message import (
    BatchItem,
    body_crc,
    decode_batch,
    decode_message,
    decode_messages,
    encode_batch,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    unpack_host,
)
from rocketbed.wire.properties import (
    decode_properties,
    encode_properties,
    find_property,
    index_keys,
)

RECORD = bytes.fromhex(
    "00000076daa320a7516fa58a000000000000000000000000000000000000000000000000"
    "00000000000001a1f6ebd74a7f000001000004d2000001a1f6ebd7c77f00000100002a9f"
    "00000000000000000000000000000005626f64793001540015"
    "4b455953016b31206b3202"
    "54414753015461674102"
)
"""store.md 2.11."""


def test_the_worked_record() -> None:
    message = decode_message(RECORD)
    assert (message.size, message.topic, message.body) == (118, "T", b"body0")
    assert message.properties == {"KEYS": "k1 k2", "TAGS": "TagA"}
    assert message.born_host == ("127.0.0.1", 1234)
    assert message.store_host == ("127.0.0.1", 10911)
    assert message.offset_message_id == "7F00000100002A9F0000000000000000"
    assert decode_messages(RECORD * 3) == [message] * 3


@pytest.mark.parametrize("at", [4, 8, 84, 88])
def test_a_damaged_record_is_refused(at: int) -> None:
    damaged = bytearray(RECORD)
    damaged[at] ^= 0x55
    with pytest.raises(RemoteProtocolError):
        decode_message(bytes(damaged))


@given(st.integers(0, len(RECORD) - 1))
def test_a_cut_record_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(RECORD[:length])


def test_known_hashes_and_checksums() -> None:
    assert java_hash("TagA") == 2598919
    assert java_hash("T#k1") == 2539445
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("é中") == 27236
    assert tag_code("TagC") == 2598921
    assert (tag_code(None), tag_code("")) == (0, 0)
    assert index_hash(extend(0, "polygenelubricants")) == 0
    assert body_crc(b"123456789") == 1274296614
    assert crc_property(13220999) == b"__CRC32#\x019990223100\x02"


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_hash_is_javas(first: str, second: str) -> None:
    expected = 0
    data = (first + second).encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        expected = (31 * expected + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    assert extend(extend(0, first), second) == expected
    assert key_state(first, second) == extend(0, f"{first}#{second}")
    assert key_state(first, second) == extend(0, f"{first}#{second}")


@pytest.mark.parametrize(
    ("address", "port", "offset", "text"),
    [
        ("10.0.0.1", 10911, 123456789, "0A00000100002A9F00000000075BCD15"),
        ("::1", 10911, 1, "0" * 31 + "100002A9F0000000000000001"),
    ],
)
def test_offset_message_ids(address: str, port: int, offset: int, text: str) -> None:
    assert offset_message_id(pack_host(address, port), offset) == text
    assert parse_offset_message_id(text) == (address, port, offset)
    assert unpack_host(pack_host(address, port)) == (address, port)


@pytest.mark.parametrize("text", ["", "xyz", "00", "0" * 33, "0" * 58])
def test_invalid_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hex|fromhex|digits"):
        parse_offset_message_id(text)


def test_the_worked_batch() -> None:
    item = BatchItem(b"b", 0, b"KEYS\x01k\x02WAIT\x01true\x02TAGS\x01TagA\x02")
    encoded = encode_batch([item])
    assert encoded.hex() == (
        "0000003200000000000000000000000000000001"
        "62001b4b455953016b025741495401747275650254414753015461674102"
    )
    assert decode_batch(encoded * 2) == [item, item]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    try:
        items = decode_batch(data)
    except RemoteProtocolError:
        return
    assert encode_batch(items)[20:21] == data[20:21]
    assert len(encode_batch(items)) == len(data)


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "XKEYS", "K"])
VALUES = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=5)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.booleans())
def test_single_property_equals_the_parsed_one(pairs: list[tuple[str, str]], ended: bool) -> None:
    text = encode_properties(pairs)
    if not ended:
        text = text.removesuffix("\x02")
    properties = decode_properties(text)
    for name in ("KEYS", "TAGS", "UNIQ_KEY"):
        value = find_property(text.encode(), name.encode() + b"\x01")
        assert value == (properties[name].encode() if name in properties else None)


@given(st.lists(st.sampled_from([b"KEYS", b"\x01", b"\x02", b"a", b"\xff"]), max_size=12))
def test_odd_property_strings_are_read_alike(parts: list[bytes]) -> None:
    data = b"".join(parts)
    expected = decode_properties(data.decode(errors="surrogateescape")).get("KEYS")
    value = find_property(data, b"KEYS\x01")
    assert (value and value.decode(errors="surrogateescape")) == expected


def test_index_keys_are_the_unique_key_and_each_key() -> None:
    assert index_keys("U", " k1  k2 ") == ("U", "k1", "k2")
    assert index_keys(None, "k") == ("k",)
    assert index_keys("U", None) == ("U",)
    assert index_keys(None, None) == ()
