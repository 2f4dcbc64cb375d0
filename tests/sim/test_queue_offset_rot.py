"""Bit rot in the queue offset that a record says: no checksum covers it, its neighbours tell.

Whatever one record says, every other one stays at its own queue offset, and the damage is named.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.inspect.check.store import check_store
from rocketbed.inspect.directory import open_directory
from rocketbed.inspect.findings import Severity
from rocketbed.inspect.rebuild import rebuild
from rocketbed.inspect.slots import Placer
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import decode_messages
from tests.support.sim.damage import ABOVE, COUNT, fill, fill_and_close, records
from tests.support.sim.store_session import ROOT, edited, flip_bit, session, settings

CONFIG = settings(sync_flush=True, scrub_rate=1 << 30)
HEAD_QUEUE_OFFSET = 20
BITS = (0, 1, 2, 3, 4, 8, 24, 40, 58, 63)
"""Not between: a gap of thousands of segments takes this simulation minutes."""
Change = Callable[[SimDisk], None]
PLACES = {
    "first": 0,
    "second": 1,
    "middle": COUNT // 2,
    "first above W": COUNT - ABOVE,
    "last but one": COUNT - 2,
    "last": COUNT - 1,
}


def flip_queue_offset(image: DiskImage, number: int, bit: int) -> Change:
    path, at, _ = records(image)[number]
    byte = at + HEAD_QUEUE_OFFSET + 7 - bit // 8
    return lambda disk: flip_bit(disk, path, byte * 8 + bit % 8)


def without_queues(disk: SimDisk) -> None:
    for path in disk.paths():
        if path.startswith((f"{ROOT}/consumequeue/", f"{ROOT}/index/")):
            disk.remove_name(path)


def without_marks(disk: SimDisk) -> None:
    without_queues(disk)
    for name in ("rocketbed.ckpt", "checkpoint"):
        disk.remove_name(f"{ROOT}/{name}")


DERIVED: dict[str, Change] = {
    "kept": lambda _: None,
    "queues deleted": without_queues,
    "queues and marks deleted": without_marks,
}


async def served(store: MessageStore) -> tuple[dict[int, int], str]:
    """Number of the message at each queue offset, and what was told."""
    await store.scrubber.finished.wait()
    reports = [damage.reason for damage in store.scrubber.damage] + store.recovery.findings
    reports += ["unqueued"] * bool(store.scrubber.unqueued)
    queue = store._parts.queues.ordinary["T", 0]
    numbers: dict[int, int] = {}
    offset = store.queue_min("T", 0)
    while offset < store.queue_max("T", 0):
        result = store.get_messages("T", 0, offset, 1)
        for message in decode_messages(store.read_cached(result.ranges) or b""):
            slot = queue.slot_of(message.physical_offset)
            assert slot is not None
            numbers[slot] = int(message.body.split(b" ")[0])
        assert result.next_offset > offset
        offset = result.next_offset
    return numbers, "; ".join(reports)


@pytest.fixture(scope="module")
def images() -> dict[str, DiskImage]:
    return {
        "clean": session(fill_and_close, config=CONFIG).image,
        "kill": session(fill, config=CONFIG).image,
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("derived", DERIVED)
@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_the_others_stay_where_they_are(
    stop: str, derived: str, place: str, images: dict[str, DiskImage]
) -> None:
    number = PLACES[place]
    for bit in BITS:
        image = edited(images[stop], flip_queue_offset(images[stop], number, bit))
        run = session(served, config=CONFIG, image=edited(image, DERIVED[derived]))
        numbers, reports = run.value
        other_numbers = {at: what for at, what in numbers.items() if what != number}
        assert other_numbers == {n: n for n in range(COUNT) if n != number}, f"bit {bit}: {reports}"
        assert number in numbers.values() or reports, f"bit {bit}"
        if number != COUNT - 1:
            assert numbers[number] == number, f"bit {bit}: {reports}"
            assert reports, f"bit {bit}"
        if derived != "kept":
            second_run = session(served, config=CONFIG, image=run.image)
            assert second_run.value[0] == numbers, f"bit {bit}"
            assert second_run.value[1] or number == COUNT - 1


@pytest.mark.parametrize("place", PLACES)
def test_fsck_names_the_record_and_no_other(
    place: str, images: dict[str, DiskImage], tmp_path: Path
) -> None:
    image, number = images["clean"], PLACES[place]
    path, at, _ = records(image)[number]
    for bit in BITS:
        root = tmp_path / str(bit)
        edited(image, flip_queue_offset(image, number, bit)).export(str(root))
        with closing(open_directory(f"{root}{ROOT}")) as opened:
            report = check_store(opened)
        grave = [found for found in report.findings if found.severity is not Severity.NOTE]
        assert [(found.rule, found.offset) for found in grave] == [
            ("no-silent-damage", int(path.rpartition("/")[2]) + at)
        ], f"bit {bit}"


@pytest.mark.parametrize("place", PLACES)
def test_rebuilt_queues_are_the_nodes(
    place: str, images: dict[str, DiskImage], tmp_path: Path
) -> None:
    """Two ways to the same units: the store takes back what it put, the reader waits."""
    for bit in BITS[1::3]:
        hurt = edited(images["clean"], flip_queue_offset(images["clean"], PLACES[place], bit))
        root = tmp_path / str(bit)
        hurt.export(str(root))
        with closing(open_directory(f"{root}{ROOT}")) as opened:
            report = rebuild(opened, f"{root}/new")
        assert report.refused == []
        run = session(served, config=CONFIG, image=edited(hurt, without_queues))
        units = {path: run.image.contents(path) for path in run.image.paths()}
        for path, data in units.items():
            if path.startswith(f"{ROOT}/consumequeue/"):
                name = f"{root}/new{path.removeprefix(ROOT)}"
                assert Path(name).read_bytes() == data, f"bit {bit}"


@pytest.mark.parametrize(
    ("offsets", "slots"),
    [
        ([0, 4, 5], [0, 4, 5]),
        ([13, 14, 20, 21], [13, 14, 20, 21]),
        ([10, 11, 0, 1, 2], [10, 11, None, None, None]),
        ([0, 1, 1, 2], [0, 1, None, 2]),
        ([9, 1, 2], [0, 1, 2]),
        ([9, 5, 6], [4, 5, 6]),
        ([9, 9, 10], [8, 9, 10]),
        ([9, 2, 11], [9, 10, 11]),
        ([0, 9, 2], [0, 1, 2]),
        ([5, 6, 3], [5, 6, 7]),
    ],
)
def test_queue_offsets_are_corrected_by_their_neighbours(
    offsets: list[int], slots: list[int | None]
) -> None:
    """A gap is one when the queue goes on behind it; a queue that began anew is left as it was."""
    placer = Placer(1000)
    read = [unit for at, one in enumerate(offsets) for unit in placer.put(one, at, 100, 0)]
    read = sorted(read + placer.finish(), key=lambda unit: unit.offset)
    assert [unit.slot for unit in read] == slots

    async def units(store: MessageStore) -> list[int | None]:
        row = store._parts.queues._make_ordinary("T", 0)
        for at, queue_offset in enumerate(offsets):
            row.put(queue_offset, at, 100, 0)
        row.adopt()
        row.write_pending()
        return [row.slot_of(at) for at in range(len(offsets))]

    assert session(units).value == slots
