"""A message as a test compares it: the same from Java's client, from ours, from a directory."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rocketbed.client.messages import Message, Received

ADDED_BY_READERS = ("MIN_OFFSET", "MAX_OFFSET")
"""Properties that Java's pull puts into what it received."""
KEY_QUERY_MAX = 64
"""Messages that an answer to a query by key has at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Everything that both clients know of a message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    message_id: str
    offset_id: str
    """Java gives the messages of an inner batch none."""
    tag: str | None
    keys: tuple[str, ...]
    flag: int
    properties: Mapping[str, str]
    body: bytes

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, queue, queue offset."""
        return self.topic, self.queue_id, self.queue_offset

    @classmethod
    def of_java(cls, row: Mapping[str, Any]) -> "Row":
        """Build a row from the output of `Reads.java`."""
        properties = {k: v for k, v in row["properties"].items() if k not in ADDED_BY_READERS}
        return cls(
            topic=row["topic"],
            queue_id=row["queueId"],
            queue_offset=row["queueOffset"],
            physical_offset=row["commitLogOffset"],
            message_id=row["msgId"],
            offset_id=row.get("offsetMsgId", ""),
            tag=row.get("tags"),
            keys=tuple((row.get("keys") or "").split()),
            flag=row["flag"],
            properties=properties,
            body=base64.b64decode(row["body"]),
        )

    @classmethod
    def of_ours(cls, message: Received) -> "Row":
        """Build a row from a message of our consumer."""
        return cls(
            topic=message.topic,
            queue_id=message.queue.queue_id,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            message_id=message.message_id,
            offset_id=message.offset_id,
            tag=message.tag,
            keys=message.keys,
            flag=message.flag,
            properties=dict(message.properties),
            body=message.body,
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A message and what its acknowledgement said."""

    message: Message
    queue_id: int
    queue_offset: int
    message_id: str
    offset_id: str


def by_place(rows: Iterable[Row]) -> dict[tuple[str, int, int], Row]:
    """Rows by topic, queue and offset; none of them twice, none missing within a queue."""
    places: dict[tuple[str, int, int], Row] = {}
    counts: dict[tuple[str, int], int] = {}
    for row in sorted(rows, key=lambda row: row.place):
        assert row.place not in places, f"{row.place} was read twice"
        queue = row.place[:2]
        assert row.queue_offset == counts.get(queue, 0), f"nothing stands before {row.place}"
        counts[queue] = row.queue_offset + 1
        places[row.place] = row
    return places


def by_key(rows: Iterable[Row], topic: str) -> dict[str, set[str]]:
    """Key -> offset ids of the topic's messages that have it, for keys that a query can answer."""
    ids_by_key: dict[str, set[str]] = {}
    for row in rows:
        if row.topic == topic:
            for key in row.keys:
                ids_by_key.setdefault(key, set()).add(row.offset_id)
    return {key: ids for key, ids in ids_by_key.items() if len(ids) <= KEY_QUERY_MAX}


def assert_held(
    rows: Mapping[tuple[str, int, int], Row],
    written: Iterable[Written],
    *,
    has_own_id: bool = True,
) -> None:
    """Every acknowledged message stands where its acknowledgement said, as it was sent.

    `has_own_id`: its id is the one that its producer gave it. RocketMQ 5.3 gives the items of a
    batch the batch's id besides, and readers take that.
    """
    for written_message in written:
        place = (
            written_message.message.topic,
            written_message.queue_id,
            written_message.queue_offset,
        )
        row = rows.get(place)
        assert row is not None, f"{place} was acknowledged and is not there"
        assert row.body == written_message.message.body, place
        assert row.message_id == written_message.message_id or not has_own_id, place
        assert row.offset_id == written_message.offset_id, place
        assert (row.tag, row.keys) == (
            written_message.message.tag,
            tuple(written_message.message.keys),
        ), place
        assert row.flag == written_message.message.flag, place
        for name, text in written_message.message.properties.items():
            assert row.properties[name] == text, place


def assert_acknowledged(
    rows: Mapping[tuple[str, int, int], Row], acknowledged: Iterable[Mapping[str, Any]]
) -> None:
    """Every message of a load (see `Sends.load`) stands where its acknowledgement said."""
    for sent in acknowledged:
        place = (sent["topic"], sent["queueId"], sent["queueOffset"])
        row = rows.get(place)
        assert row is not None, f"{place} was acknowledged and is not there"
        assert row.keys == (sent["key"],), place
        assert row.body.startswith(f"{sent['key']}.".encode()), place
        assert len(row.body) == sent["size"], place
        assert (row.message_id, row.offset_id) == (sent["msgId"], sent["offsetMsgId"]), place
