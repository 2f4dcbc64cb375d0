"""Every damage to every class of bytes of a small store, and what a start makes of each.

A store of one queue over three log segments: `COUNT` acknowledged messages, the mark W below the
last few of them, F behind all. Nothing may be lost without a word: a start refuses and says what to
do, or serves everything, or what is missing or altered is told by the scrub or the record's own
checksum.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.errors import CorruptRecord, StoreError
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.unit_queue import UNIT
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.message import HEAD, decode_messages
from tests.support.sim.store_session import ROOT, edited, flip_bit, put, session, settings, settle

COUNT = 24
ABOVE = 4
"""Messages above W."""
SAMPLE = 9
"""One case in so many in a quick run; the slow ones have them all."""
CONFIG = settings(sync_flush=True, scrub_rate=1 << 30)
Change = Callable[[SimDisk], None]

FIELDS = {
    "size": 2, "magic": 6, "body crc": 10, "queue id": 14, "queue offset": 26,
    "physical offset": 34, "body length": 87, "body": 100, "topic": -1,
}  # fmt: skip
"""Fields of a record by the byte in it that is hit; the topic stands behind the body."""


@dataclass(frozen=True)
class Case:
    stop: str
    alteration: str
    change: Change


async def fill(store: MessageStore) -> None:
    for number in range(COUNT):
        put(store, body=b"%d " % number + bytes([65 + number]) * 300, keys=(f"k{number}",))
        if number == COUNT - ABOVE - 1:
            await settle(store)
    await store.flushed.wait_above(store.max_offset - 1)


async def fill_and_close(store: MessageStore) -> None:
    await fill(store)
    await store.close()


def power_cut(disk: SimDisk) -> None:
    disk.power_cut("strict")


def stores() -> dict[str, DiskImage]:
    """The store after each kind of stop."""
    killed = session(fill, config=CONFIG)
    return {
        "clean": session(fill_and_close, config=CONFIG).image,
        "kill": killed.image,
        "power": edited(killed.image, power_cut),
    }


def records(image: DiskImage) -> list[tuple[str, int, int]]:
    """Path, place in the file and size of each record."""
    places = []
    for path in image.paths():
        if not path.startswith(f"{ROOT}/commitlog/"):
            continue
        data, at = image.contents(path), 0
        start = int(path.rpartition("/")[2])
        while at + HEAD.size <= len(data) and HEAD.unpack_from(data, at)[6] == start + at:
            size = HEAD.unpack_from(data, at)[0]
            if size < HEAD.size:
                break
            places.append((path, at, size))
            at += size
    return places


def cases(images: dict[str, DiskImage]) -> Iterator[Case]:
    for stop, image in images.items():
        rows = records(image)
        assert len(rows) == COUNT
        places = {"first": 0, "middle": COUNT // 2, "last below W": COUNT - ABOVE - 1, "last": -1}
        for place, number in places.items():
            path, at, size = rows[number]
            for name, byte in FIELDS.items():
                hit = at + byte if byte >= 0 else topic_at(image, path, at)
                yield Case(stop, f"bit in {name} of the {place} record", flip(path, hit))
            yield Case(stop, f"{place} record zeroed", zero(path, at, size))
        for path in image.paths():
            kind = path.removeprefix(f"{ROOT}/")
            length = len(image.contents(path))
            yield Case(stop, f"{kind} deleted", delete(path))
            yield Case(stop, f"{kind} cut short", cut(path, length // 2))
            yield Case(stop, f"{kind} zeroed", zero(path, 0, length))
            if length:
                yield Case(stop, f"bit in {kind}", flip(path, min(length - 1, 9)))
        units = f"{ROOT}/consumequeue/T/0/{0:020d}"
        for name, byte in {"offset": 7, "size": 11, "tag": 19}.items():
            yield Case(stop, f"bit in {name} of unit 5", flip(units, 5 * UNIT.size + byte))
        path = next(path for path in image.paths() if path.startswith(f"{ROOT}/index/"))
        for name, byte in index_bytes(image.contents(path)).items():
            yield Case(stop, f"bit in {name} of the index", flip(path, byte))


def index_bytes(data: bytes) -> dict[str, int]:
    """A byte of each field of an index file's header, of a used slot, and of entry 5."""
    entry = 40 + 4 * CONFIG.index_slots + 5 * 20
    slots = range(40, 40 + 4 * CONFIG.index_slots, 4)
    return {
        "begin time": 7, "end time": 15, "begin offset": 23, "end offset": 31, "next entry": 39,
        "a used slot": next(at for at in slots if any(data[at : at + 4])) + 3,
        "hash 5": entry + 3, "offset 5": entry + 11, "time 5": entry + 14, "previous 5": entry + 19,
    }  # fmt: skip


def topic_at(image: DiskImage, path: str, at: int) -> int:
    body_length = int.from_bytes(image.contents(path)[at + 84 : at + 88], "big")
    return at + 88 + body_length + 1


def flip(path: str, byte: int) -> Change:
    return lambda disk: flip_bit(disk, path, byte * 8 + 3)


def zero(path: str, at: int, size: int) -> Change:
    def change(disk: SimDisk) -> None:
        data = bytearray(disk.contents(path))
        data[at : at + size] = bytes(size)
        disk.replace_contents(path, bytes(data))

    return change


def cut(path: str, length: int) -> Change:
    return lambda disk: disk.replace_contents(path, disk.contents(path)[:length])


def delete(path: str) -> Change:
    return lambda disk: disk.remove_name(path)


async def serve(store: MessageStore) -> str:
    """Read everything a start serves; return an empty text if all is as before, else who reported
    the loss.
    """
    await store.scrubber.finished.wait()
    reports = [f"scrub: {damage.reason}" for damage in store.scrubber.damage]
    reports += ["scrub: records in no queue"] * bool(store.scrubber.unqueued)
    reports += [f"start: {finding}" for finding in store.recovery.findings]
    bodies: dict[int, bytes] = {}
    unknown = 0
    offset = store.queue_min("T", 0)
    while offset < store.queue_max("T", 0):
        try:
            result = store.get_messages("T", 0, offset, 1)
        except CorruptRecord as exc:
            reports.append(f"refused: {exc}")
            offset += 1
            continue
        try:
            for message in decode_messages(store.read_cached(result.ranges) or b""):
                number = bodies[message.queue_offset] = message.body.split(b" ")[0]
                at_ms = message.store_timestamp
                offsets = store._parts.index.query(
                    "T", f"k{number.decode()}", 9, at_ms - 1000, at_ms + 1000
                )
                unknown += message.physical_offset not in offsets
        except RemoteProtocolError as exc:
            reports.append(f"checksum: {exc}")
        assert result.next_offset > offset, "a pull that does not go on"
        offset = result.next_offset
    reports += [f"scrub: {store.scrubber.index_damage}"] * bool(store.scrubber.index_damage)
    if unknown and not reports:
        return f"SILENT LOSS: keys of {unknown} messages"
    if bodies == {number: b"%d" % number for number in range(COUNT)}:
        return "served whole"
    return (
        f"told: {reports[0]}"
        if reports
        else f"SILENT LOSS: {COUNT - len(bodies)} of {COUNT} messages"
    )


def outcome(case: Case, images: dict[str, DiskImage]) -> str:
    """Outcome of a start on a case."""
    image = edited(images[case.stop], case.change)
    try:
        answer: str = session(
            serve, config=CONFIG, image=image, boots=2 if case.stop == "power" else 1
        ).value
    except StoreError as exc:
        return f"refused: {exc}"
    return answer


def explained(case: Case) -> str:
    """Reason why no check can report a damage; empty if one has to."""
    if case.stop != "clean" and case.alteration in {
        f"bit in {name} of the last record" for name in ("queue id", "topic")
    }:
        return (
            "no checksum covers the field (enabledAppendPropCRC writes one), and it is in no queue"
        )
    last_segment = case.alteration.startswith(f"commitlog/{2 * CONFIG.segment_size:020d}")
    if case.stop == "power" and (last_segment or case.alteration == "last record zeroed"):
        return "above W, and the last F was not on disk: no different from what the power loss left"
    return ""


def table(outcomes: dict[Case, str]) -> dict[str, Counter[str]]:
    """Verdicts by kind of stop."""
    counts: dict[str, Counter[str]] = {}
    for case, text in outcomes.items():
        counts.setdefault(case.stop, Counter())[text.partition(":")[0]] += 1
    return counts
