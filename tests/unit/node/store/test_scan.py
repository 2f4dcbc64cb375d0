"""End of a scan of the log: before an incomplete record, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbed.node.store.run import closed
from rocketbed.node.store.scan import RecordScanner, Stop
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.properties import decode_properties, index_keys
from tests.support.stores import Spec, encode

SEGMENT = 4096
TAGS = (("UNIQ_KEY", "7F00000100002A9F0000000000000001"), ("TAGS", "green"))


def record(spec: Spec, offset: int) -> bytes:
    return encode(spec, offset=offset, queue_offset=offset, store_ms=1)


def scan(buffer: bytes, *, check_crc: bool = True) -> tuple[int, int, Stop]:
    """Records, where they end, and why."""
    scanner = RecordScanner(check_crc=check_crc, delays_ms=[0])
    scanned = scanner.scan(buffer, 0, segment_end=SEGMENT)
    return len(scanned.entries), scanned.end, scanned.stop


@pytest.mark.parametrize(
    "spec",
    [
        Spec(properties=TAGS),
        Spec(),
        Spec(body=b"", properties=TAGS),
        Spec(body=b""),
        Spec(body=bytes(40), properties=TAGS),
        Spec(body=b"x" * 40 + bytes(40)),
    ],
    ids=["full", "no-properties", "no-body", "neither", "zero-body", "zero-ended-body"],
)
def test_cut_last_record_ends_the_log_before_it(spec: Spec) -> None:
    first = record(Spec(properties=TAGS), 0)
    last = record(spec, len(first))
    for cut in range(len(last) + 1):
        written = last[:cut].ljust(len(last), b"\0")
        count, end, stop = scan((first + written).ljust(SEGMENT, b"\0"))
        assert stop is Stop.BAD
        if written == last:
            assert (count, end) == (2, len(first) + len(last)), cut
        else:
            assert (count, end) == (1, len(first)), cut


def test_zero_at_a_record_end_is_fine_before_another() -> None:
    first = record(Spec(properties=(("P", "x"),)), 0)
    first = first[:-1] + b"\0"
    second = record(Spec(), len(first))
    assert scan((first + second).ljust(SEGMENT, b"\0"))[:2] == (2, len(first + second))


def test_buffer_ending_at_a_torn_record_leaves_it() -> None:
    first = record(Spec(properties=TAGS), 0)
    torn = record(Spec(properties=TAGS), len(first))[:-3] + bytes(3)
    for following in range(8):
        assert scan(first + torn + bytes(following)) == (1, len(first), Stop.MORE)
    assert scan(first + torn + bytes(8))[:2] == (1, len(first))


def test_live_dispatch_skips_the_torn_end_check() -> None:
    whole = record(Spec(properties=(("P", "x"),)), 0)[:-1] + b"\0"
    assert scan(whole.ljust(SEGMENT, b"\0"), check_crc=False)[:2] == (1, len(whole))


def test_own_records_never_end_with_a_zero_byte() -> None:
    assert closed(b"P\x01x\0") == b"P\x01x\0\x02"
    assert closed(b"P\x01x") == b"P\x01x"
    assert closed(b"") == b""


NAMES = [b"UNIQ_KEY\x01", b"UNIQ_KEY", b"XUNIQ_KEY\x01", b"TAGS\x01", b"KEYS\x01"]
REST = [b"\x02", b"\x02", b"\x01", b"a", b"b c", b"\xff"]
PIECES = st.lists(st.sampled_from([*NAMES, *REST]), max_size=14).map(b"".join)


@given(st.lists(PIECES, min_size=1, max_size=6))
def test_property_cache_changes_no_tag_and_no_key(texts: list[bytes]) -> None:
    """Each text again and again, by one scanner that remembers and by others that do not."""
    remembers = RecordScanner(check_crc=False, delays_ms=[])
    for text in [*texts, *texts]:
        fresh = RecordScanner(check_crc=False, delays_ms=[])
        parsed = decode_properties(text.decode(errors="surrogateescape"))
        values = {
            name: value.encode(errors="surrogateescape").decode(errors="replace")
            for name, value in parsed.items()
        }
        tag, keys = values.get("TAGS", ""), index_keys(values.get("UNIQ_KEY"), values.get("KEYS"))
        expected = tag_code(tag) if tag else 0, keys
        assert remembers._tag_and_keys(text) == fresh._tag_and_keys(text) == expected, text
