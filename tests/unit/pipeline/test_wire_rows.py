"""Rows of pulled records: as from a file, wherever in the broker's log they stand."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.decode import Selection
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from rocketbed.pipeline.wire import plan
from rocketbed.pipeline.wire.log import RawPull, WireError
from rocketbed.pipeline.wire.rows import ANY, WireDecoder
from rocketbed.wire.bodies import MessageQueue
from tests.support.logs import INNER, THREE, Message
from tests.support.stores import STORE_MS, encode, some

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
COLUMNS = ("broker", "replica", "segment", "queue_offset", "physical_offset", "body", "crc_ok")


def answer(first: int, count: int, *, gap: int = 1000) -> bytes:
    """Records of one queue with other queues' records between them in the log."""
    return b"".join(
        encode(spec, offset=7 + gap * (first + number), queue_offset=first + number, store_ms=1)
        for number, spec in enumerate(some(count))
    )


def rows(
    records: bytes, *, start: int = 0, end: int = 1 << 60, following: int = ANY, **texts: str
) -> list[dict[str, object]]:
    options = Options.parse({"endpoints": "h:1", "topics": "T", "batchRows": "16", **texts})
    decoder = WireDecoder(QUEUE, arrow_schema("records", COLUMNS), options, Selection.of(options))
    actual = []
    for batch in decoder.rows(records, 3, start=start, end=end, following=following):
        actual += batch.to_pylist()
    return actual


def test_every_record_brings_its_own_offset() -> None:
    actual_rows = rows(answer(100, 40))
    assert [row["physical_offset"] for row in actual_rows] == [
        7 + 1000 * n for n in range(100, 140)
    ]
    assert [row["queue_offset"] for row in actual_rows] == list(range(100, 140))
    assert actual_rows[3] | {"queue_offset": 0, "physical_offset": 0} == {
        "broker": "broker-a",
        "replica": "3",
        "segment": None,
        "queue_offset": 0,
        "physical_offset": 0,
        "body": b"body 3",
        "crc_ok": True,
    }


def test_only_the_range_and_what_is_wanted() -> None:
    records = answer(100, 40)
    assert [row["queue_offset"] for row in rows(records, start=110, end=113)] == [110, 111, 112]
    late = rows(records, startOffset=str(7 + 1000 * 138))
    assert [row["queue_offset"] for row in late] == [138, 139]
    assert rows(records, start=200) == []
    assert rows(b"") == []


def test_damaged_body_is_a_row_and_missing_records_an_error() -> None:
    good = answer(0, 3)
    at = good.index(b"body 1")
    damaged = good[:at] + b"BODY" + good[at + 4 :]
    assert [row["crc_ok"] for row in rows(damaged)] == [True, False, True]
    actual_rows = rows(damaged, mode="DROPMALFORMED")
    assert [row["queue_offset"] for row in actual_rows] == [0, 2]
    for cut in (len(good) - 1, 10):
        with pytest.raises(WireError, match=r"queue 0 of topic T at broker-a.*not a record"):
            rows(good[:cut])
    alien = encode(replace(some(1)[0]), offset=5, queue_offset=0, store_ms=STORE_MS)
    with pytest.raises(WireError, match=f"bytes at {len(good)}"):
        rows(good + alien[:4] + b"XXXX" + alien[8:])


def test_misplaced_records_are_reported() -> None:
    """For example where a unit of the queue, or a record's own fields, are damaged."""
    good = [
        encode(spec, offset=1000 * number, queue_offset=number, store_ms=1)
        for number, spec in enumerate(some(5))
    ]
    topic = encode(replace(some(1)[0], topic="U"), offset=2000, queue_offset=2, store_ms=1)
    queue = encode(replace(some(1)[0], queue_id=1), offset=2000, queue_offset=2, store_ms=1)
    ahead = encode(some(1)[0], offset=2000, queue_offset=4, store_ms=1)
    for odd in (topic, queue, ahead, good[0]):
        answer = b"".join((*good[:2], odd, *good[3:]))
        with pytest.raises(WireError, match="the broker gives a record that says") as caught:
            rows(answer)
        assert caught.value.condition is Condition.CORRUPT_RECORD
        assert len(rows(answer, failOnDataLoss="false")) in (4, 5)
    with pytest.raises(WireError, match="says it is 4 of queue 0"):
        rows(b"".join((*good[:2], ahead)), end=3, following=3)


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_messages_that_the_broker_passes_over_are_lost(lost: int) -> None:
    """At the beginning of a range, within it, and at its end, whatever it says comes next."""
    good = [
        encode(spec, offset=1000 * number, queue_offset=number, store_ms=1)
        for number, spec in enumerate(some(5))
    ]
    answer = b"".join(good[:lost] + good[lost + 1 :])
    for loose in (False, True):
        options = Options.parse(
            {"endpoints": "h:1", "topics": "T", "failOnDataLoss": str(not loose).lower()}
        )
        selection, schema = Selection.of(options), arrow_schema("records", COLUMNS)
        decoder = WireDecoder(QUEUE, schema, options, selection, first=0)

        def read(decoder: WireDecoder = decoder) -> int:
            batches = list(decoder.rows(answer, 0, start=0, end=5, following=5))
            decoder.finish(5)
            return sum(batch.num_rows for batch in batches)

        if loose:
            assert read() == 4
        else:
            with pytest.raises(WireError, match=f"messages {lost} to {lost}; ") as caught:
                read()
            assert caught.value.condition is Condition.DATA_LOSS


class Answers:
    """A broker of five records that gives what it has, up to three of them at once."""

    def __init__(self, *records: bytes) -> None:
        self.records = records

    def call(self, question: Any) -> Any:
        return trio.run(question, self)

    async def pull(self, queue: MessageQueue, offset: int, *, count: int) -> RawPull:
        end = min(offset + count, offset + 3, 5)
        data = b"".join(self.records[offset:end])
        return RawPull(records=data, next_offset=end, first=0, end=5, broker_id=0)


@pytest.mark.parametrize("place", [4, 85, 12], ids=["magic", "a length", "nothing"])
@pytest.mark.parametrize("bad", [[0], [1], [2, 3], [4], [0, 1, 2, 3, 4]], ids=str)
def test_unsplittable_answer_is_read_one_by_one(
    bad: list[int], place: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the read, and so did what was good behind it."""
    records = [
        bytearray(encode(spec, offset=1000 * number, queue_offset=number, store_ms=1))
        for number, spec in enumerate(some(5))
    ]
    for number in bad:
        records[number][place : place + 1] = b"" if place == 12 else b"\x77"
    monkeypatch.setattr(plan, "shared_log", lambda _: Answers(*map(bytes, records)))

    def read(**more: str) -> list[int]:
        options = Options.parse({"endpoints": "h:1", "topics": "T", **more})
        share = (plan.QueueRange(QUEUE, 0, 5),)
        schema = arrow_schema("records", COLUMNS)
        batches = plan.read_share(share, schema, options, Selection.of(options))
        return [int(row["queue_offset"]) for batch in batches for row in batch.to_pylist()]

    with pytest.raises(WireError, match=r"not a record; .* failOnDataLoss=false") as caught:
        read()
    assert caught.value.condition is Condition.CORRUPT_RECORD
    assert read(failOnDataLoss="false") == [number for number in range(5) if number not in bad]
    reports = [record.args for record in caplog.records if "does not give" in str(record.args)]
    assert reports
    assert "wire.uncut" in caplog.text


class Batches(Answers):
    """A broker that gives the record of several messages for any offset in it."""

    async def pull(self, queue: MessageQueue, offset: int, *, count: int) -> RawPull:
        records = dict.fromkeys(self.records[offset : offset + count])
        after = 4 if 1 <= offset < 4 and count == 1 else min(offset + count, 6)
        return RawPull(records=b"".join(records), next_offset=after, first=0, end=6, broker_id=0)


BATCH = Message(body=THREE, properties="INNER_NUM\x013\x02", sys_flag=INNER).encode(1000, 1)


@pytest.mark.parametrize("at", range(1, 6))
def test_message_in_a_batch_counts_by_its_own_offset(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted by the first one's: of a range from 2 on it was not there."""
    plain = [Message().encode(1000 * number, number) for number in (0, 4, 5)]
    records = [plain[0], BATCH, BATCH, BATCH, *plain[1:]]
    monkeypatch.setattr(plan, "shared_log", lambda _: Batches(*records))

    def read(start: int, end: int, **more: str) -> list[int]:
        options = Options.parse({"endpoints": "h:1", "topics": "T", **more})
        share = (plan.QueueRange(QUEUE, start, end),)
        schema = arrow_schema("records", COLUMNS)
        batches = plan.read_share(share, schema, options, Selection.of(options))
        return [row["queue_offset"] for one in batches for row in one.to_pylist()]

    assert (read(0, at), read(at, 6)) == (list(range(at)), list(range(at, 6)))
    assert read(at, at + 1) == [at]
    assert read(0, at, inner="keep") + read(at, 6, inner="keep") == [0, 1, 4, 5]


@pytest.mark.parametrize("rows", ["1", "2", "9"])
def test_unsplittable_answer_after_a_batch_repeats_nothing(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker gives a batch for any of its offsets."""
    plain, bad = Message(), bytearray(Message().encode(4000, 4))
    bad[4] = 0x77
    records = [plain.encode(0, 0), BATCH, BATCH, BATCH, bytes(bad), plain.encode(5000, 5)]
    monkeypatch.setattr(plan, "shared_log", lambda _: Batches(*records))
    texts = {"endpoints": "h:1", "topics": "T", "failOnDataLoss": "false", "batchRows": rows}
    options = Options.parse(texts)
    share = (plan.QueueRange(QUEUE, 0, 6),)
    schema = arrow_schema("records", COLUMNS)
    batches = plan.read_share(share, schema, options, Selection.of(options))
    assert [row["queue_offset"] for one in batches for row in one.to_pylist()] == [0, 1, 2, 3, 5]


def of_three(first: int, properties: str = "INNER_NUM\x013\x02") -> bytes:
    return Message(body=THREE, properties=properties, sys_flag=INNER).encode(1000 * first, first)


@pytest.mark.parametrize(
    ("records", "pattern"),
    [
        ([of_three(0), of_three(0), of_three(3)], "behind queue offset 2 .* says it is 0 "),
        ([of_three(0), of_three(3), of_three(3)], "behind queue offset 5 .* says it is 3 "),
        ([of_three(0), Message().encode(0, 2)], "behind queue offset 2 .* says it is 2 "),
        ([of_three(0), of_three(6)], "does not give messages 3 to 5; "),
        ([of_three(0), of_three(3)], "does not give messages 6 to 8; "),
        ([of_three(3), of_three(6)], "does not give messages 0 to 2; "),
        ([of_three(0), Message().encode(0, 3), of_three(5)], "messages 4 to 4; "),
        ([Message().encode(0, 0), Message().encode(0, 2), of_three(3)], "messages 1 to 1; "),
        ([of_three(0, ""), Message().encode(0, 5), Message().encode(0, 7)], "messages 6 to 6; "),
    ],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_batches_are_checked_for_gaps_and_doubles(
    records: list[bytes], pattern: str, is_cut: bool
) -> None:
    """After one batch in an answer there were no more checks of it: rows were doubled or missing,
    without an error.
    """
    options = Options.parse({"endpoints": "h:1", "topics": "T"})
    selection, schema = Selection.of(options), arrow_schema("records", COLUMNS)
    decoder = WireDecoder(QUEUE, schema, options, selection, first=0)

    def read() -> None:
        for data in records if is_cut else [b"".join(records)]:
            list(decoder.rows(data, 0, start=0, end=9))
        decoder.finish(9)

    with pytest.raises(WireError, match=pattern) as caught:
        read()
    assert caught.value.condition in (Condition.CORRUPT_RECORD, Condition.DATA_LOSS)


@pytest.mark.parametrize("count_text", ["1", "2", "5", "9"])
@pytest.mark.parametrize("first", [0, 3, 6])
@pytest.mark.parametrize("is_cut", [False, True])
def test_batch_with_a_wrong_count_affects_only_itself(
    count_text: str, first: int, is_cut: bool
) -> None:
    """It is a row that says so; what stands behind it is sound, and nothing is missing."""
    options = Options.parse({"endpoints": "h:1", "topics": "T"})
    selection, schema = Selection.of(options), arrow_schema("records", [*COLUMNS, "_corrupt"])
    decoder = WireDecoder(QUEUE, schema, options, selection, first=0)
    records = [
        of_three(at, f"INNER_NUM\x01{count_text if at == first else 3}\x02") for at in (0, 3, 6)
    ]
    rows: list[dict[str, Any]] = []
    for data in records if is_cut else [b"".join(records)]:
        for batch in decoder.rows(data, 0, start=0, end=9):
            rows += batch.to_pylist()
    decoder.finish(9)
    assert len(rows) == 3 + 3 + 1
    assert [row["_corrupt"]["reason"] for row in rows if row["_corrupt"]] == ["bad_properties"]
    assert [row["body"] for row in rows if row["_corrupt"]] == [None]


@pytest.mark.parametrize("start", [0, 1])
def test_damaged_batch_has_no_body_to_rewrite(start: int) -> None:
    """Its encoded messages were the body, and became one message when written."""
    plain = [Message(body=b"%d" % at).encode(1000 * at, at) for at in (0, 4, 5)]
    data = b"".join((plain[0], of_three(1).replace(b"three", b"thr33"), *plain[1:]))
    bodies = [row["body"] for row in rows(data, start=start)]
    assert bodies == [b"0", None, b"4", b"5"][start:]
    kept_bodies = [row["body"] for row in rows(data, start=start, inner="keep")]
    assert kept_bodies == [b"0", THREE.replace(b"three", b"thr33"), b"4", b"5"][start:]
