"""The durable mark as this version and earlier versions wrote it."""

import crcmod.predefined
import orjson

from rocketbed.node.store.indexfile import Header
from rocketbed.node.store.marks import AcceptedCut, Mark, decode_mark, encode_mark

FULL = Mark(
    store_id="5f",
    offset=4096,
    sizes=(1, 2, 3, 4, 5),
    record_start=4000,
    queue_count=2,
    queue_total=9,
    queue_first=3,
    index=("20261121", Header(1, 2, 3, 4, 5, 6)),
    index_filled_ms=7,
    cut_to=8,
    clean="ab",
    deleted={"T": 9},
    first=10,
    accepted=(AcceptedCut(1, 2, 3, 4),),
    scrubbed=11,
    damage=((1, 2, "why"),),
    index_tags=True,
    followed="host:1#2",
)


def test_marks_round_trip() -> None:
    assert decode_mark(encode_mark(FULL)) == FULL


def test_a_mark_of_an_earlier_version_is_read() -> None:
    """It had a time that nothing read, and none of the later fields."""
    names = ("id", "w", "sizes", "record", "units", "index", "index_filled_ms", "cut", "clean")
    document = orjson.loads(encode_mark(FULL).split(b"\n")[1])
    old = {name: document[name] for name in names} | {"physic_ms": 12, "deleted": {}}
    text = orjson.dumps(old)
    check = crcmod.predefined.mkCrcFun("crc-32c")(text)
    mark = decode_mark(b"rocketbed-ckpt 1\n%s\n%08x\n" % (text, check))
    assert mark == Mark(
        store_id="5f",
        offset=4096,
        sizes=(1, 2, 3, 4, 5),
        record_start=4000,
        queue_count=2,
        queue_total=9,
        index=FULL.index,
        index_filled_ms=7,
        cut_to=8,
        clean="ab",
    )


def test_incomplete_mark_is_ignored() -> None:
    data = encode_mark(FULL)
    assert all(decode_mark(data[:end]) is None for end in range(len(data)))
    assert decode_mark(data.replace(b"4096", b"4097")) is None
