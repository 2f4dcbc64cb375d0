"""Index files that are not what the log makes of them: reported by the scrub, built again later."""

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.store import MessageStore
from tests.support.sim.damage import records
from tests.support.sim.store_session import ROOT, edited, flip_bit, put, session, settings, settle

COUNT = 60
"""Messages with two keys each: over three index files."""
CONFIG = settings(scrub_rate=1 << 30)
SLOTS = 40
ENTRIES = SLOTS + 4 * CONFIG.index_slots


async def fill(store: MessageStore) -> None:
    for number in range(COUNT):
        put(store, body=b"%d" % number, keys=(f"k{number}", f"all{number % 7}"))
    await settle(store)
    await store.close()


async def look(store: MessageStore) -> str:
    await store.scrubber.finished.wait()
    await store.close()
    return store.scrubber.index_damage


def index_of(image: DiskImage) -> dict[str, bytes]:
    """Contents by path; names change when it is built again."""
    paths = [path for path in image.paths() if path.startswith(f"{ROOT}/index/")]
    return {path: image.contents(path) for path in paths}


def test_a_whole_index_is_in_order() -> None:
    image = session(fill).image
    assert len(index_of(image)) == 3
    assert session(look, config=CONFIG, image=image).value == ""


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "byte", [7, 15, 23, 31, SLOTS + 3, ENTRIES + 23, ENTRIES + 31, ENTRIES + 35, ENTRIES + 79]
)
def test_wrong_bit_is_reported_and_the_index_rebuilt(number: int, byte: int) -> None:
    good = session(fill).image
    path = list(index_of(good))[number]
    used = next(at for at in range(SLOTS, ENTRIES, 4) if any(good.contents(path)[at : at + 4]))
    place = used + 3 if byte == SLOTS + 3 else byte
    bad = edited(good, lambda disk: flip_bit(disk, path, place * 8))
    first = session(look, config=CONFIG, image=bad)
    assert path in first.value or "not in it" in first.value
    second = session(look, config=CONFIG, image=first.image)
    assert second.value == ""
    assert list(index_of(second.image).values()) == list(index_of(good).values())


@pytest.mark.parametrize("number", [0, 7, 31, COUNT - 1])
@pytest.mark.parametrize("name", [b"UNIQ_KEY", b"KEYS"])
def test_key_missing_from_its_record_is_reported(name: bytes, number: int) -> None:
    """The name of a property is another one: no checksum covers it."""
    good = session(fill).image
    path, at, size = records(good)[number]
    byte = at + good.contents(path)[at : at + size].index(name)
    first = session(look, config=CONFIG, image=edited(good, lambda d: flip_bit(d, path, byte * 8)))
    assert "is of no key that the record" in first.value
    assert session(look, config=CONFIG, image=first.image).value == ""


def test_truncated_index_file_is_rebuilt_at_once() -> None:
    good = session(fill).image

    def cut(disk: SimDisk) -> None:
        path = next(iter(index_of(good)))
        disk.replace_contents(path, disk.contents(path)[:700])

    run = session(look, config=CONFIG, image=edited(good, cut))
    assert run.value == ""
    assert list(index_of(run.image).values()) == list(index_of(good).values())


@pytest.mark.parametrize("pause_s", [0.5, 3.0])
def test_a_pause_between_two_files_is_no_damage(pause_s: float) -> None:
    """A file's first entry counts its seconds from the end of the file before."""

    async def slowly(store: MessageStore) -> None:
        for number in range(COUNT):
            put(store, body=b"%d" % number, keys=(f"k{number}",))
            await trio.sleep(pause_s)
        await settle(store)
        await store.close()

    image = session(slowly).image
    assert len(index_of(image)) == 2
    assert session(look, config=CONFIG, image=image).value == ""


@pytest.mark.parametrize("number", [0, 1])
def test_lost_index_file_is_reported_and_rebuilt(number: int) -> None:
    good = session(fill).image
    path = list(index_of(good))[number]
    first = session(look, config=CONFIG, image=edited(good, lambda disk: disk.remove_name(path)))
    assert "record at" in first.value
    second = session(look, config=CONFIG, image=first.image)
    assert second.value == ""
    assert list(index_of(second.image).values()) == list(index_of(good).values())


def test_index_is_rebuilt_after_being_switched_off() -> None:
    good = session(fill).image

    async def one_more(store: MessageStore) -> None:
        put(store, body=b"more", keys=("more",))
        await settle(store)

    killed = session(one_more, config=settings(index_enabled=False), image=good).image
    assert index_of(killed) == index_of(good)

    async def query(store: MessageStore) -> list[int]:
        await store.scrubber.finished.wait()
        keys = ("k0", f"k{COUNT - 1}", "more")
        return [len((await store.query("T", key, 9, 0, 1 << 60)).records) for key in keys]

    assert session(query, config=CONFIG, image=killed).value == [1, 1, 1]


async def put_more(store: MessageStore) -> str:
    """While the scrub looks at the last file, it grows."""
    for number in range(5):
        put(store, body=b"more", keys=(f"more{number}",))
    await settle(store)
    return await look(store)


def test_an_index_that_grows_meanwhile_is_in_order() -> None:
    image = session(fill).image
    assert session(put_more, config=CONFIG, image=image).value == ""


async def cut_what_was_scrubbed(store: MessageStore) -> str:
    """The scrub pauses behind records that are cut meanwhile; others take their places."""
    await trio.sleep(1)  # virtual
    assert store.scrubber.position > 1000
    place = await store.removal.boundary_below(store.scrubber.position - 1000)
    assert place is not None
    await store.removal.cut(place.end)
    for number in range(COUNT):
        put(store, body=b"more", keys=(f"more{number}",))
    await settle(store)
    assert not store.scrubber.finished.is_set()
    return await look(store)


def test_index_cut_during_the_scrub_is_in_order() -> None:
    image = session(fill).image
    assert session(cut_what_was_scrubbed, config=settings(scrub_rate=64), image=image).value == ""
