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
    first = min((one.physical for one in model.kept), default=low)
    assert low <= first, f"beginning: the log begins at {low}, behind {first}"
    for (topic, queue), kept in sorted(queues.items()):
        await _ask_queue(store, topic, queue, kept)
        if topic in batches:
            await _pull_batches(store, topic, queue, kept)
        else:
            await _pull_all(store, topic, queue, kept, random)
            _ask_beyond(store, topic, queue, kept)
            await _search(store, topic, queue, kept, random)
    told = {(topic, queue) for topic, queue, _ in store.queue_keys()}
    assert told >= queues.keys(), f"queues: {sorted(queues.keys() - told)} are not told"
    for topic, queue, is_batch in store.queue_keys():
        assert is_batch == (topic in batches), f"queues: {topic}/{queue} is of the other kind"
    missing = store.get_messages("no such topic", 0, 3, 1)
    assert _told(missing) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0), "pull: of no queue"
    await _ask_keys(store, model, random)
    for one in random.sample(model.kept, min(len(model.kept), 6)):
        assert await store.record_at(one.physical) == one.data, f"record: at {one.physical}"
        inside = await store.record_at(one.physical + 8)
        assert inside is None, f"record: at {one.physical + 8}, where none begins"
    assert await store.record_at(model.written) is None, "record: behind the end"


async def _ask_queue(store: MessageStore, topic: str, queue: int, kept: list[Kept]) -> None:
    first, end = kept[0].offset, kept[-1].offset + kept[-1].put.count
    name = f"{topic}/{queue}"
    assert store.queue_min(topic, queue) == first, f"bounds: {name} begins at {first}"
    for committed in (True, False):
        at = store.queue_max(topic, queue, committed=committed)
        assert at == end, f"bounds: {name} ends at {end}, not {at}"
    at_ms = await store.stored_ms(topic, queue)
    assert at_ms == kept[0].stored_ms, f"time: {name} begins at {kept[0].stored_ms}, not {at_ms}"


def _told(result: GetResult) -> tuple[GetStatus, int, int, int]:
    return result.status, result.next_offset, result.min_offset, result.max_offset


def _ask_beyond(store: MessageStore, topic: str, queue: int, kept: list[Kept]) -> None:
    low, high = kept[0].offset, kept[-1].offset + 1
    answers = [
        (high, GetStatus.OFFSET_OVERFLOW_ONE, high),
        (high + 1, GetStatus.OFFSET_OVERFLOW_BADLY, high),
    ]
    if low:
        answers.append((low - 1, GetStatus.OFFSET_TOO_SMALL, low))
    for offset, status, then in answers:
        told = _told(store.get_messages(topic, queue, offset, 8))
        wanted = (status, then, low, high)
        assert told == wanted, f"pull: {topic}/{queue} from {offset}: {told} for {wanted}"


async def _pull_all(
    store: MessageStore, topic: str, queue: int, kept: list[Kept], random: Random
) -> None:
    """From the beginning, the middle and the end; by number, by size, by tag."""
    low, high = kept[0].offset, kept[-1].offset + 1
    for offset in {low, random.randrange(low, high), high - 1}:
        rest = kept[offset - low :]
        for count in (1, random.randint(2, 40)):
            want = rest[: min(count, PULL_MAX)]
            await _compare(store, store.get_messages(topic, queue, offset, count), want, kept)
        room = random.randint(1, sum(one.size for one in rest) + 1)
        fit, total = 1, rest[0].size
        while fit < min(len(rest), PULL_MAX) and total + rest[fit].size <= room:
            total += rest[fit].size
            fit += 1
        found = store.get_messages(topic, queue, offset, ALL, max_bytes=room)
        await _compare(store, found, rest[:fit], kept)
        for tag in {one.put.tag for one in rest}:
            codes = {tag_code(tag or None)}
            count = random.choice((1, 3, PULL_MAX))
            some = [one for one in rest if one.put.tag == tag]
            found = store.get_messages(topic, queue, offset, count, tag_codes=codes)
            # It stops in front of the first that it has no room for, wanted or not.
            last = some[count - 1].offset + 1 if len(some) >= count else high
            await _compare(store, found, some[:count], kept, last)
        none = store.get_messages(topic, queue, offset, 8, tag_codes={12345})
        wanted = (GetStatus.NO_MATCHED_MESSAGE, high, low, high)
        assert _told(none) == wanted, f"pull: {topic}/{queue} of an unknown tag: {_told(none)}"


async def _compare(
    store: MessageStore,
    found: GetResult,
    want: list[Kept],
    kept: list[Kept],
    last: int | None = None,
) -> None:
    """Whether a pull gave these records, and says to go on behind the last (or at `last`)."""
    where = f"{kept[0].put.topic}/{kept[0].put.queue} from {want[0].offset}"
    places = [(one.physical, one.size) for one in want]
    assert found.ranges == places, f"pull: {where}: {found.ranges} for {places}"
    then = want[-1].offset + 1 if last is None else last
    wanted = (GetStatus.FOUND, then, kept[0].offset, kept[-1].offset + 1)
    assert _told(found) == wanted, f"pull: {where}: {_told(found)} for {wanted}"
    data = b"".join(one.data for one in want)
    cached = store.read_cached(found.ranges)
    assert cached is None or cached == data, f"pull: {where}: other bytes"
    read = await store.read(found.ranges)
    assert read == data, f"pull: {where}: other bytes from the disk"


async def _pull_batches(store: MessageStore, topic: str, queue: int, kept: list[Kept]) -> None:
    """A batch queue from its beginning on, a message at a time and all at once."""
    end = kept[-1].offset + kept[-1].put.count
    for count in (1, PULL_MAX):
        offset, places = kept[0].offset, []
        while offset < end:
            found = store.get_messages(topic, queue, offset, count)
            assert found.status is GetStatus.FOUND, f"pull: {topic}/{queue} from {offset}"
            assert found.next_offset > offset, f"pull: {topic}/{queue} stays at {offset}"
            bounds = (found.min_offset, found.max_offset)
            assert bounds == (kept[0].offset, end), f"bounds: {topic}/{queue}: {bounds}"
            assert count > 1 or len(found.ranges) == 1, f"pull: {topic}/{queue}: too many"
            places += found.ranges
            offset = found.next_offset
        wanted = [(one.physical, one.size) for one in kept]
        assert places == wanted, f"pull: {topic}/{queue}: {places} for {wanted}"
        assert offset == end, f"pull: {topic}/{queue} goes on at {offset} behind {end}"
    for one in kept:
        for offset in {one.offset, one.offset + one.put.count - 1}:
            found = store.get_messages(topic, queue, offset, 1)
            wanted = [(one.physical, one.size)]
            assert found.ranges == wanted, f"pull: {topic}/{queue} from {offset}, in a batch"
    beyond = store.get_messages(topic, queue, end, 1)
    assert beyond.status is GetStatus.OFFSET_OVERFLOW_ONE, f"pull: {topic}/{queue} at its end"
    for one in kept[:: max(len(kept) // 3, 1)]:
        at = await store.offset_by_time(topic, queue, one.stored_ms, upper=False)
        same = next(other for other in kept if other.stored_ms >= one.stored_ms)
        inside = range(same.offset, same.offset + same.put.count)
        assert at in inside, f"time: {topic}/{queue} at {one.stored_ms}: {at}"


async def _search(
    store: MessageStore, topic: str, queue: int, kept: list[Kept], random: Random
) -> None:
    """The first message at a time or behind it, and the last at it or before it."""
    times = [one.stored_ms for one in kept]
    drawn = random.sample(times, min(len(times), 4))
    for time_ms in {times[0] - 1, times[-1] + 1, *drawn, *(at + 1 for at in drawn)}:
        late = sum(at < time_ms for at in times)
        early = max(sum(at <= time_ms for at in times) - 1, 0)
        for upper, want in ((False, late), (True, early)):
            at = await store.offset_by_time(topic, queue, time_ms, upper=upper)
            want += kept[0].offset
            assert at == want, f"time: {topic}/{queue} at {time_ms} {upper}: {at} for {want}"


async def _ask_keys(store: MessageStore, model: Model, random: Random) -> None:
    """All messages of a key, its newest, and those of a time."""
    found: dict[tuple[str, str], list[Kept]] = {}
    for one in model.kept:
        if one.put.topic not in model.doubtful and one.physical not in model.hidden:
            for key in one.put.keys:
                found.setdefault((one.put.topic, key), []).append(one)
    hidden = {model_one.put.topic for model_one in model.kept if model_one.physical in model.hidden}
    asked = [place for place in sorted(found) if place[0] not in hidden]
    for topic, key in random.sample(asked, min(len(asked), 12)):
        kept = found[topic, key]
        whole = await store.query(topic, key, 64, 0, ALL)
        _same(whole.records, kept, f"{topic} {key}")
        newest = await store.query(topic, key, 1, 0, ALL)
        _same(newest.records, kept[-1:], f"the newest of {topic} {key}")
        one = random.choice(kept)
        begin, end = one.stored_ms - SECOND_MS, one.stored_ms + LATE_MS
        windows = ((begin, end, True), (0, begin - 1, False), (end + 1, ALL, False))
        for begin_ms, end_ms, is_in in windows:
            records = (await store.query(topic, key, 64, begin_ms, end_ms)).records
            what = f"{topic} {key} from {begin_ms} to {end_ms}"
            assert (one.data in records) == is_in, f"query: {what}"
    nothing = await store.query("no such topic", "no such key", 64, 0, ALL)
    assert not nothing.records, "query: a key that nobody sent was found"


def _same(records: Iterable[bytes], kept: list[Kept], what: str) -> None:
    data = [one.data for one in kept]
    assert [*records] == data, f"query: {what}: not the {len(data)} records that have it"
