"""Pieces of a store asked by themselves, each beside another way to say the same: which records a
pull gets, what is damaged, what is laid over a log, when a file of it goes, which sizes fit.
"""

from random import Random
from types import SimpleNamespace
from typing import Any, Final

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.damage import JOIN_GAP, RANGES_MAX, SHOWN, Damage, DamagedRanges
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.picker import GetResult, Picker
from rocketbed.node.store.status import GetStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.node.store.view import LogView, Staged
from rocketbed.wire.message import RECORD_MIN
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.pieces_cut import ask_cuts, ask_far, ask_known_damage
from tests.model.pieces_expiry import ask_expiry
from tests.model.pieces_files import (
    ask_lengths,
    ask_retention,
    ask_sectors,
    ask_sizes,
    ask_times,
)
from tests.model.pieces_flush import ask_flush
from tests.model.pieces_index import ask_index
from tests.model.pieces_ring import ask_ring
from tests.model.pieces_units import ask_batches
from tests.model.store import ROOT, Topics, settings

DRAWN: Final = 150
BLANK: Final[tuple[int, ...]] = (0, (1 << 31) - 1, 0)
"""A unit that stands for no message."""
MAGIC: Final = 0xDAA320A7 - (1 << 32)
GONE: Final = GetStatus.MESSAGE_WAS_REMOVING


def run_pieces(seed: int) -> str:
    random = Random(f"pieces/{seed}")
    for _ in range(DRAWN):
        _picked(random)
        _damaged(random)
    for least in (1, 2, 4):
        _joined(random, JOIN_GAP * least + random.randrange(2))
    ask_sizes()
    ask_times()
    ask_sectors(random)
    asked = (_main, ask_cuts, ask_far, ask_known_damage)
    runs = [run_alone(ask, random, settings(random)) for ask in asked]
    return " ".join(run.digest for run in (*runs, run_alone(ask_flush, random)))


async def _main(world: World, random: Random, config: StoreConfig) -> None:
    store = await MessageStore.open(world, config, Topics())
    for _ in range(20):
        _staged(world, random, store)
    ask_lengths(world)
    for _ in range(DRAWN):
        ask_retention(world, random, config)
    for _ in range(20):
        ask_batches(world, random, store)
        await ask_index(world, random, store)
    await ask_expiry(world, random, config)
    ask_ring(world, random)
    store._release()


# --- what a pull gets


def _damages(random: Random, end: int) -> tuple[DamagedRanges, list[tuple[int, int, bool]]]:
    damaged, known = DamagedRanges(), list[tuple[int, int, bool]]()
    for _ in range(random.randrange(5)):
        start = random.randrange(end)
        if known and random.random() < 0.3:
            start = random.choice(known)[1] - random.randrange(2)
        stretch = start, start + random.randrange(1, 99), random.random() < 0.3
        damaged.add(Damage(*stretch[:2], f"of {start}", is_readable=stretch[2]))
        known.append(stretch)
    return damaged, known


def _picked(random: Random) -> None:
    """Not more than asked for nor than is set, but one always; nothing damaged, nothing twice."""
    units, at = list[tuple[int, ...]](), random.randrange(3)
    for _ in range(random.randrange(1, 12)):
        draw, size = random.random(), RECORD_MIN + random.choice((0, 0, 0, 1, 40))
        if draw < 0.1:
            units.append(BLANK)
            continue
        at = at - 150 if draw < 0.12 and at > 149 else at
        size = RECORD_MIN - 1 if 0.12 <= draw < 0.14 else size
        size = BLANK[1] if 0.14 <= draw < 0.16 and at else size
        units.append((at, size, random.choice((5, -7, 5 - (1 << 32), 9))))
        at += 0 if draw > 0.97 else size if draw >= 0.16 else 91
    config = SimpleNamespace(
        memory_bytes=random.choice((0, 1, 300)),
        transfer_count_memory=random.randrange(1, 6),
        transfer_bytes_memory=random.choice((91, 182, 273, 400)),
        transfer_count_disk=random.randrange(1, 4),
        transfer_bytes_disk=random.choice((91, 182)),
    )
    written = at + random.randrange(2)
    if config.memory_bytes > 1:
        config.memory_bytes = max(written - random.choice(units)[0], 1)
    low = random.choice((0, 0, 91, 92))
    damaged, known = _damages(random, at + 1) if random.random() < 0.5 else (DamagedRanges(), [])
    log = SimpleNamespace(min_offset=low, written=SimpleNamespace(value=written))
    parts: Any = SimpleNamespace(config=config, log=log, damaged=damaged)
    many, room = random.randrange(1, 9), random.choice((None, 0, 91, 182, 1000))
    codes = random.choice((None, frozenset((5,)), frozenset((-7, 9)), frozenset[int]()))
    result = GetResult(
        status=GetStatus.NO_MATCHED_MESSAGE, next_offset=100, min_offset=0, max_offset=999
    )
    picker = Picker(parts, result, many, room, codes)
    want = [*_pick(units, config, low, written, known, many, room, codes)]
    try:
        picker.pick(units[:6])
        if not picker.full:
            picker.pick(units[6:])
        error: CorruptRecord | None = None
    except CorruptRecord as exc:
        error = exc
    ranges, offset, is_full, last, is_gone, refused = want
    found: list[object] = [result.ranges, result.next_offset, picker.full, picker.last_physical]
    found += [result.status is GONE, None if error is None else error.offset]
    assert found == [ranges, offset, is_full, last, is_gone, refused], f"pick: {found}: {want}"
    if error is not None and "queue offset" in str(error):
        assert f"queue offset {offset} is" in str(error), f"pick: {error!s}"


def _pick(
    units: list[tuple[int, ...]],
    config: Any,
    low: int,
    written: int,
    known: list[tuple[int, int, bool]],
    many: int,
    room: int | None,
    codes: frozenset[int] | None,
) -> Any:
    """Records, next offset, whether one was left, last place, whether one is gone, what is bad."""
    ranges, before, last, is_gone = list[tuple[int, int]](), -1, -1, False
    for number, (at, size, code) in enumerate(units, 100):
        if (at, size) == BLANK[:2]:
            continue
        if size <= 90 or before >= at:
            return ranges, number, bool(ranges), last, is_gone, None if ranges else at
        before, is_far = at, config.memory_bytes and written - at > config.memory_bytes
        most = config.transfer_count_disk if is_far else config.transfer_count_memory
        bytes_max = config.transfer_bytes_disk if is_far else config.transfer_bytes_memory
        bytes_max = min(bytes_max, room or config.transfer_bytes_memory)
        held = sum(one for _, one in ranges)
        if ranges and (len(ranges) + 1 > min(most, many) or held + size > bytes_max):
            return ranges, number, True, last, is_gone, None
        fits = codes is None or code in codes
        bad = [one for one in _merged(known) if one[0] < at + size and one[1] > at]
        if fits and bad:
            return ranges, number, bool(ranges), last, is_gone, None if ranges else bad[0][0]
        if at < low:
            is_gone = True
        else:
            last = at
            ranges = [*ranges, (at, size)] if fits else ranges
    return ranges, 100 + len(units), False, last, is_gone, None


# --- what is damaged


def _merged(known: list[tuple[int, int, bool]], *, readable: bool = False) -> list[tuple[int, int]]:
    """Stretches of a kind, those that overlap made one."""
    found = list[tuple[int, int]]()
    for start, end, is_readable in sorted(known):
        if is_readable != readable:
            continue
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _damaged(random: Random) -> None:
    damaged, known = _damages(random, 300)
    cut = random.randrange(400) if random.random() < 0.3 else 999
    if known and random.random() < 0.2:
        cut = random.choice(known)[0] + random.randrange(2)
    if cut != 999:
        damaged.cut(cut)
        known = [(start, min(end, cut), is_readable) for start, end, is_readable in known]
        known = [one for one in known if one[0] < cut]
    bad, fair = _merged(known), _merged(known, readable=True)
    found = [(one.start, one.end) for one in damaged.ranges]
    assert found == sorted(bad + fair, key=lambda one: one[0]), f"damage: {found} of {known}"
    readable = [(one.start, one.end) for one in damaged.ranges if one.is_readable]
    assert readable == fair, f"damage: {readable} can be read, of {known}"
    for _ in range(9):
        at, size = random.randrange(420), random.randrange(1, 60)
        hit = damaged.hit(at, size)
        want = [one for one in bad if one[0] < at + size and at < one[1]][:1]
        told = [] if hit is None else [(hit.start, hit.end)]
        assert told == want, f"damage: {at} of {size} bytes hits {told}, not {want}"
        try:
            damaged.refuse(at, size)
            assert not want, f"damage: {at} is not refused"
        except CorruptRecord as exc:
            assert [exc.offset] == [start for start, _ in want], f"damage: {at}: {exc}"
            assert "bytes {} to {} of".format(*want[0]) in str(exc), f"damage: {exc!s}"


def _joined(random: Random, least: int) -> None:
    """Beyond so many, those that lie nearest are one, and their reasons say so once."""
    damaged, gaps, at = DamagedRanges(), list[int](), 0
    spans = list[tuple[int, int]]()
    for number in range(RANGES_MAX):
        spans.append((at, at + 10))
        damaged.add(Damage(*spans[-1], "bad"))
        first = ";".join(f"{start}-{end}" for start, end in spans[:SHOWN])
        want = first + (f" and {number + 1 - SHOWN} more" if number >= SHOWN else "")
        assert damaged.summary() == want, f"damage: {damaged.summary()} for {want}"
        gaps.append(least if number < 3 or random.random() < 0.05 else JOIN_GAP * 9)
        at += 10 + gaps[-1]
    assert len(damaged.ranges) == damaged.count == RANGES_MAX, f"damage: {len(damaged.ranges)}"
    damaged.add(Damage(at, at + 10, "bad"))
    spans.append((at, at + 10))
    gap = next(gap for gap in (JOIN_GAP << by for by in range(9)) if least <= gap)
    joined = list[tuple[int, int, str]]()
    for start, end in spans:
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = joined[-1][0], end, "bad, and more behind it"
        else:
            joined.append((start, end, "bad"))
    found = [(one.start, one.end, one.reason) for one in damaged.ranges]
    assert found == joined, f"damage: {len(found)} stretches are left of {RANGES_MAX + 1}"
    assert damaged.count == RANGES_MAX + 1, f"damage: {damaged.count} were found"


# --- what is laid over a log


def _staged(world: World, random: Random, store: MessageStore) -> None:
    """What was staged last is read, else what the files have, else zeros."""
    disk: Any = world.disk
    size = store._parts.config.segment_size
    starts = [size * number for number in range(random.randrange(3), 4)]
    view = LogView(store._parts, starts, {})
    path = f"{ROOT}/rocketbed.tmp/heal"
    disk.makedirs(f"{ROOT}/rocketbed.tmp")
    disk.replace_contents(path, b"of a crash")
    view.staged = staged = Staged(world, path)
    end, want, pieces = 4 * size, bytearray(4 * size), list[tuple[int, int]]()
    at = random.randrange(size)
    while at < end:
        data = random.randbytes(min(random.choice((1, 50, size, size + 9)), end - at))
        staged.add(at, data)
        want[at : at + len(data)] = data
        if pieces and sum(pieces[-1]) == at:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + len(data)
        else:
            pieces.append((at, len(data)))
        at += len(data) + random.choice((0, 1, 70, size))
    for _ in range(20):
        at, length = random.randrange(end + 9), random.randrange(size + 9)
        held = bytes(want[at : min(at + length, at - at % size + size)])
        held = held if starts[0] <= at < end else b""
        assert view.read(at, length) == held, f"view: {length} bytes at {at}"
    begin = random.randrange(starts[0], end)
    until = random.randrange(begin, end)
    assert view.read_all(begin, until) == want[begin:until], f"view: {begin} to {until}"
    found = [
        piece for start, length in staged.pieces(size) for piece in range(start, start + length)
    ]
    assert found == [one for at, length in pieces for one in range(at, at + length)], "view: pieces"
    for start, length in staged.pieces(size):
        assert start // size == (start + length - 1) // size, f"view: {start} of {length} bytes"
    assert view.incomplete == starts, f"view: {view.incomplete} have no file"
    view.lengths = {starts[0]: size, starts[-1] + size: 1, starts[-1]: size - 1}
    assert view.incomplete == starts[1:] or len(starts) == 1, f"view: {view.incomplete} are short"
    staged.close()
    staged.close()
    assert not disk.exists(path), "view: it is left"
