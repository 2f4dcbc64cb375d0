"""Messages: what is refused before it is sent, and what becomes of stored ones."""

import zlib
from typing import Any

import pytest

from rocketbed.client.errors import BadMessage
from rocketbed.client.messages import BODY_MAX, Message, Received, check_group
from rocketbed.client.pulls import TagFilter
from rocketbed.wire.message import (
    COMPRESSED,
    INNER_BATCH,
    BatchItem,
    StoredMessage,
    encode_batch,
)
from rocketbed.wire.properties import decode_properties, index_keys


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topic": ""}, "topic name ''"),
        ({"topic": "no blanks"}, "letters, digits"),
        ({"topic": "T" * 128}, "the limit is 127"),
        ({"body": b""}, "must be non-empty bytes"),
        ({"body": "text"}, "must be non-empty bytes"),
        ({"body": bytes(BODY_MAX + 1)}, "the limit is 4194304"),
        ({"tag": "a\udc80"}, r"must be whole characters: '\\udc80' is half of one"),
        ({"keys": ("\ud83d",)}, "must be whole characters"),
        ({"message_id": "\udc80"}, "must be whole characters"),
        ({"properties": {"k": "\udc80"}}, "must be whole characters"),
        ({"properties": {"\udc80": "v"}}, "must be whole characters"),
        ({"tag": 0}, "must be text, not 0"),
        ({"keys": (5,)}, "must be text, not 5"),
        ({"message_id": 5}, "must be text, not 5"),
        ({"properties": {"k": 5}}, "must be text, not 5"),
        ({"properties": {"k": None}}, "must be text, not None"),
        ({"properties": {5: "v"}}, "must be text, not 5"),
        ({"topic": "T\udc80"}, "letters, digits"),
        ({"flag": 1 << 31}, "32 bits"),
        ({"delay_level": -1}, "delay level -1"),
        ({"delay_level": "3"}, "delay level '3'"),
        ({"properties": {"DELAY": "1"}}, "set by the client: DELAY"),
        ({"keys": "abc"}, "sequence of non-empty strings"),
        ({"keys": ("a b",)}, "without spaces"),
        ({"keys": ("",)}, "without spaces"),
        ({"properties": {"UNIQ_KEY": "x"}}, "set by the client: UNIQ_KEY"),
        ({"properties": {"a\x01": "x"}}, r"characters U\+0001 and U\+0002"),
        ({"tag": "a\x02"}, r"characters U\+0001 and U\+0002"),
        ({"tag": "a||b"}, "no subscription could ask for it"),
        ({"tag": " a"}, "no subscription could ask for it"),
        ({"properties": {"a": ""}}, "a name and a value"),
        ({"message_id": "a b"}, "without white space"),
        ({"message_id": ""}, "without white space"),
        ({"message_id": "a\x01"}, r"characters U\+0001 and U\+0002"),
    ],
)
def test_unacceptable_messages(changes: dict[str, Any], reason: str) -> None:
    message = Message(**{"topic": "T", "body": b"x", **changes})
    with pytest.raises(BadMessage, match=reason):
        message.check()


def test_properties_text() -> None:
    message = Message("T", b"x", tag="A", keys=["k1", "k2"], properties={"color": "red"})
    message.check()
    assert decode_properties(message.properties_text("ID")) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "WAIT": "true",
        "TAGS": "A",
        "color": "red",
    }
    delayed = Message("T", b"x", delay_level=3).properties_text("ID")
    assert decode_properties(delayed)["DELAY"] == "3"
    with pytest.raises(BadMessage, match="the limit is 32767"):
        Message("T", b"x", properties={"a": "ä" * 17_000}).properties_text("ID")


def test_group_names() -> None:
    check_group("g" * 120)
    with pytest.raises(BadMessage, match="120"):
        check_group("g" * 121)
    with pytest.raises(BadMessage, match="letters"):
        check_group("a b")


def stored(body: bytes, sys_flag: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        size=100, body_crc=0, queue_id=3, flag=5, queue_offset=9, physical_offset=1000,
        sys_flag=sys_flag, born_timestamp=1, born_host=("10.0.0.9", 7), store_timestamp=2,
        store_host=("10.0.0.1", 10911), reconsume_times=0, prepared_transaction_offset=0,
        body=body, topic="T", properties_text="", properties=dict(properties),
    )  # fmt: skip


IDEOGRAPHIC_SPACE = "\u3000"
SPACES = [IDEOGRAPHIC_SPACE, "\u00a0", "\u2028", "\x85", "\t"]


@pytest.mark.parametrize("space", SPACES)
def test_only_a_blank_separates_keys(space: str) -> None:
    """An index has the keys as Java splits them, and a query compares whole keys."""
    keys = (f"Zhang{space}San", "k2")
    text = Message("T", b"x", keys=keys).properties_text("ID")
    properties = decode_properties(text)
    assert index_keys(None, properties["KEYS"]) == keys
    assert Received.of(stored(b"x", KEYS=properties["KEYS"]), "a").keys == keys


def test_a_tag_keeps_spaces_that_no_broker_removes() -> None:
    tag = f"A{IDEOGRAPHIC_SPACE}"
    Message("T", b"x", tag=tag).check()
    words = TagFilter(f" {tag} || B\t")
    assert words.tags == {tag, "B"}


def test_received() -> None:
    message = Received.of(stored(b"x", TAGS="A", KEYS="k1 k2", UNIQ_KEY="ID"), "a")
    assert (message.topic, message.queue.broker_name, message.queue.queue_id) == ("T", "a", 3)
    assert (message.message_id, message.tag, message.keys) == ("ID", "A", ("k1", "k2"))
    assert message.offset_id == "0A00000100002A9F00000000000003E8"


def test_message_without_a_unique_key_uses_its_offset_id() -> None:
    message = Received.of(stored(b"x"), "a")
    assert message.message_id == message.offset_id


def test_packed_bodies_are_unpacked_and_broken_ones_kept() -> None:
    whole = Received.of(stored(zlib.compress(b"hello"), COMPRESSED | 0x300), "a")
    assert (whole.body, whole.is_packed) == (b"hello", False)
    broken = Received.of(stored(b"\x00nonsense", COMPRESSED), "a")
    assert (broken.body, broken.is_packed) == (b"\x00nonsense", True)


def test_an_inner_batch_is_several_messages() -> None:
    items = [BatchItem(b"%d" % n, n, f"UNIQ_KEY\x01U{n}\x02TAGS\x01t{n}".encode()) for n in (0, 1)]
    body = encode_batch([*items, BatchItem(b"2", 2, b"KEYS\x01k l")])
    for packed, flags in ((body, 0), (zlib.compress(body), COMPRESSED)):
        messages = Received.all_of(stored(packed, INNER_BATCH | flags, UNIQ_KEY="WHOLE"), "a")
        assert [message.queue_offset for message in messages] == [9, 10, 11]
        assert [(m.body, m.flag) for m in messages] == [(b"0", 0), (b"1", 1), (b"2", 2)]
        assert [(m.message_id, m.tag) for m in messages] == [
            ("U0", "t0"),
            ("U1", "t1"),
            ("WHOLE", None),
        ]
        assert messages[2].keys == ("k", "l")
    assert Received.all_of(stored(body), "a") == [Received.of(stored(body), "a")]


def test_undecodable_inner_batch_is_left_whole() -> None:
    broken = stored(b"\x00\x00\x00\x09nonsense", INNER_BATCH)
    assert Received.all_of(broken, "a") == [Received.of(broken, "a")]
