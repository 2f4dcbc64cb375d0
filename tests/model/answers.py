"""Asks an open store everything that a reader could, and compares each answer with the model.

Bounds, pulls from every kind of offset and under every limit, searches by time, queries by key,
single records. What is compared is exact: a status, an offset or a byte that differs is wrong.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from rocketbed.node.store.picker import GetResult
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.javahash import tag_code
from tests.model.model import Kept, Model

ALL: Final = 1 << 50
PULL_MAX: Final = 32
"""Messages of one pull, whatever it asks for (`maxTransferCountOnMessageInMemory`)."""
SECOND_MS: Final = 1000
"""The index tells seconds."""
LATE_MS: Final = 300_000
"""A file's first entry counts from the end of the file before, as upstream, so that it seems later
by what no message came for; longer than any rest of a life."""


async def ask(store: MessageStore, model: Model, random: Random, batches: Sequence[str]) -> None:
    """Everything, with offsets and times in part drawn."""
    await store.dispatched.wait_for(store.max_offset)
    low, queues = store.min_offset, model.queues()
    assert store.max_offset == model.written, f"end: {store.max_offset} for {model.written}"
    first = min((record.physical for record in model.kept), default=low)
    assert low <= first, f"beginning: the log begins at {low}, behind {first}"
    for (topic, queue), records in sorted(queues.items()):
        await _ask_queue(store, topic, queue, records)
        if topic in batches:
            await _pull_batches(store, topic, queue, records)
        else:
            await _pull_all(store, topic, queue, records, random)
            _ask_beyond(store, topic, queue, records)
            await _search(store, topic, queue, records, random)
    actual = {(topic, queue) for topic, queue, _ in store.queue_keys()}
    assert actual >= queues.keys(), f"queues: {sorted(queues.keys() - actual)} are not told"
    for topic, queue, is_batch in store.queue_keys():
        assert is_batch == (topic in batches), f"queues: {topic}/{queue} is of the other kind"
    missing = store.get_messages("no such topic", 0, 3, 1)
    assert _summary(missing) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0), "pull: of no queue"
    await _ask_keys(store, model, random)
    for record in random.sample(model.kept, min(len(model.kept), 6)):
        assert await store.record_at(record.physical) == record.data, (
            f"record: at {record.physical}"
        )
        inside = await store.record_at(record.physical + 8)
        assert inside is None, f"record: at {record.physical + 8}, where none begins"
    assert await store.record_at(model.written) is None, "record: behind the end"


async def _ask_queue(store: MessageStore, topic: str, queue: int, records: list[Kept]) -> None:
    first, end = records[0].offset, records[-1].offset + records[-1].put.count
    name = f"{topic}/{queue}"
    assert store.queue_min(topic, queue) == first, f"bounds: {name} begins at {first}"
    for committed in (True, False):
        at = store.queue_max(topic, queue, committed=committed)
        assert at == end, f"bounds: {name} ends at {end}, not {at}"
    at_ms = await store.stored_ms(topic, queue)
    assert at_ms == records[0].stored_ms, (
        f"time: {name} begins at {records[0].stored_ms}, not {at_ms}"
    )


def _summary(result: GetResult) -> tuple[GetStatus, int, int, int]:
    return result.status, result.next_offset, result.min_offset, result.max_offset


def _ask_beyond(store: MessageStore, topic: str, queue: int, records: list[Kept]) -> None:
    low, high = records[0].offset, records[-1].offset + 1
    answers = [
        (high, GetStatus.OFFSET_OVERFLOW_ONE, high),
        (high + 1, GetStatus.OFFSET_OVERFLOW_BADLY, high),
    ]
    if low:
        answers.append((low - 1, GetStatus.OFFSET_TOO_SMALL, low))
    for offset, status, then in answers:
        actual = _summary(store.get_messages(topic, queue, offset, 8))
        expected = (status, then, low, high)
        assert actual == expected, f"pull: {topic}/{queue} from {offset}: {actual} for {expected}"


async def _pull_all(
    store: MessageStore, topic: str, queue: int, records: list[Kept], random: Random
) -> None:
    """Pull from the beginning, the middle and the end; by number, by size, by tag."""
    low, high = records[0].offset, records[-1].offset + 1
    for offset in {low, random.randrange(low, high), high - 1}:
        remaining = records[offset - low :]
        for count in (1, random.randint(2, 40)):
            want = remaining[: min(count, PULL_MAX)]
            await _compare(store, store.get_messages(topic, queue, offset, count), want, records)
        room = random.randint(1, sum(record.size for record in remaining) + 1)
        fit, total = 1, remaining[0].size
        while fit < min(len(remaining), PULL_MAX) and total + remaining[fit].size <= room:
            total += remaining[fit].size
            fit += 1
        result = store.get_messages(topic, queue, offset, ALL, max_bytes=room)
        await _compare(store, result, remaining[:fit], records)
        for tag in {record.put.tag for record in remaining}:
            codes = {tag_code(tag or None)}
            count = random.choice((1, 3, PULL_MAX))
            some = [record for record in remaining if record.put.tag == tag]
            result = store.get_messages(topic, queue, offset, count, tag_codes=codes)
            # It stops in front of the first that it has no room for, wanted or not.
            last = some[count - 1].offset + 1 if len(some) >= count else high
            await _compare(store, result, some[:count], records, last)
        none = store.get_messages(topic, queue, offset, 8, tag_codes={12345})
        expected = (GetStatus.NO_MATCHED_MESSAGE, high, low, high)
        assert _summary(none) == expected, (
            f"pull: {topic}/{queue} of an unknown tag: {_summary(none)}"
        )


async def _compare(
    store: MessageStore,
    result: GetResult,
    want: list[Kept],
    records: list[Kept],
    last: int | None = None,
) -> None:
    """Check that a pull gave these records, and the offset after the last one (or `last`)."""
    where = f"{records[0].put.topic}/{records[0].put.queue} from {want[0].offset}"
    places = [(record.physical, record.size) for record in want]
    assert result.ranges == places, f"pull: {where}: {result.ranges} for {places}"
    then = want[-1].offset + 1 if last is None else last
    expected = (GetStatus.FOUND, then, records[0].offset, records[-1].offset + 1)
    assert _summary(result) == expected, f"pull: {where}: {_summary(result)} for {expected}"
    data = b"".join(record.data for record in want)
    cached = store.read_cached(result.ranges)
    assert cached is None or cached == data, f"pull: {where}: other bytes"
    read = await store.read(result.ranges)
    assert read == data, f"pull: {where}: other bytes from the disk"


async def _pull_batches(store: MessageStore, topic: str, queue: int, records: list[Kept]) -> None:
    """A batch queue from its beginning on, a message at a time and all at once."""
    end = records[-1].offset + records[-1].put.count
    for count in (1, PULL_MAX):
        offset, places = records[0].offset, []
        while offset < end:
            result = store.get_messages(topic, queue, offset, count)
            assert result.status is GetStatus.FOUND, f"pull: {topic}/{queue} from {offset}"
            assert result.next_offset > offset, f"pull: {topic}/{queue} stays at {offset}"
            bounds = (result.min_offset, result.max_offset)
            assert bounds == (records[0].offset, end), f"bounds: {topic}/{queue}: {bounds}"
            assert count > 1 or len(result.ranges) == 1, f"pull: {topic}/{queue}: too many"
            places += result.ranges
            offset = result.next_offset
        expected = [(record.physical, record.size) for record in records]
        assert places == expected, f"pull: {topic}/{queue}: {places} for {expected}"
        assert offset == end, f"pull: {topic}/{queue} goes on at {offset} behind {end}"
    for record in records:
        for offset in {record.offset, record.offset + record.put.count - 1}:
            result = store.get_messages(topic, queue, offset, 1)
            expected = [(record.physical, record.size)]
            assert result.ranges == expected, f"pull: {topic}/{queue} from {offset}, in a batch"
    beyond = store.get_messages(topic, queue, end, 1)
    assert beyond.status is GetStatus.OFFSET_OVERFLOW_ONE, f"pull: {topic}/{queue} at its end"
    for record in records[:: max(len(records) // 3, 1)]:
        at = await store.offset_by_time(topic, queue, record.stored_ms, upper=False)
        same = next(other for other in records if other.stored_ms >= record.stored_ms)
        inside = range(same.offset, same.offset + same.put.count)
        assert at in inside, f"time: {topic}/{queue} at {record.stored_ms}: {at}"


async def _search(
    store: MessageStore, topic: str, queue: int, records: list[Kept], random: Random
) -> None:
    """The first message at a time or behind it, and the last at it or before it."""
    times = [record.stored_ms for record in records]
    drawn = random.sample(times, min(len(times), 4))
    for time_ms in {times[0] - 1, times[-1] + 1, *drawn, *(at + 1 for at in drawn)}:
        late = sum(at < time_ms for at in times)
        early = max(sum(at <= time_ms for at in times) - 1, 0)
        for upper, expected in ((False, late), (True, early)):
            at = await store.offset_by_time(topic, queue, time_ms, upper=upper)
            expected += records[0].offset
            assert at == expected, (
                f"time: {topic}/{queue} at {time_ms} {upper}: {at} for {expected}"
            )


async def _ask_keys(store: MessageStore, model: Model, random: Random) -> None:
    """Query all messages of a key, its newest, and those of a time."""
    result: dict[tuple[str, str], list[Kept]] = {}
    for record in model.kept:
        if record.put.topic not in model.doubtful and record.physical not in model.hidden:
            for key in record.put.keys:
                result.setdefault((record.put.topic, key), []).append(record)
    hidden = {model_one.put.topic for model_one in model.kept if model_one.physical in model.hidden}
    places = [place for place in sorted(result) if place[0] not in hidden]
    for topic, key in random.sample(places, min(len(places), 12)):
        kept = result[topic, key]
        whole = await store.query(topic, key, 64, 0, ALL)
        _same(whole.records, kept, f"{topic} {key}")
        newest = await store.query(topic, key, 1, 0, ALL)
        _same(newest.records, kept[-1:], f"the newest of {topic} {key}")
        record = random.choice(kept)
        begin, end = record.stored_ms - SECOND_MS, record.stored_ms + LATE_MS
        windows = ((begin, end, True), (0, begin - 1, False), (end + 1, ALL, False))
        for begin_ms, end_ms, is_in in windows:
            records = (await store.query(topic, key, 64, begin_ms, end_ms)).records
            case = f"{topic} {key} from {begin_ms} to {end_ms}"
            assert (record.data in records) == is_in, f"query: {case}"
    nothing = await store.query("no such topic", "no such key", 64, 0, ALL)
    assert not nothing.records, "query: an unknown key was found"


def _same(records: Iterable[bytes], kept: list[Kept], case: str) -> None:
    data = [record.data for record in kept]
    assert [*records] == data, f"query: {case}: not the {len(data)} records that have it"
