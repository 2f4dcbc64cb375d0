"""One test for each trap of store.md 14: it would fail with RocketMQ's behaviour.

T18, T22 and T23 hold facts; T21 (offsets saved on timers) is an allowance of the checkers, not a
behaviour of the store; T11 is in tests/unit/node/broker/test_config_file.py too.
"""

import errno
from collections.abc import Callable
from functools import partial

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store import recovery
from rocketbed.node.store.errors import (
    BadStoreDirectory,
    DamagedLog,
    MessageRejected,
    StoreFailed,
    StoreLocked,
)
from rocketbed.node.store.parts import AllTopics
from rocketbed.node.store.scan import RecordScanner, Stop
from rocketbed.node.store.status import GetStatus, PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import HEAD, MAGIC_V2
from rocketbed.world.api import World
from tests.support.sim.store_session import (
    ROOT,
    edited,
    flip_bit,
    pull,
    put,
    session,
    settings,
    settle,
)

LOG = f"{ROOT}/commitlog/{0:020d}"
QUEUE = f"{ROOT}/consumequeue/T/0/{0:020d}"


def power_cut(disk: SimDisk) -> None:
    disk.power_cut()


def strict_power_cut(disk: SimDisk) -> None:
    disk.power_cut("strict")


async def nothing(store: MessageStore) -> MessageStore:
    return store


async def bodies(store: MessageStore) -> list[tuple[int, bytes]]:
    return [(message.queue_offset, message.body) for message in pull(store)]


async def bodies_and_next(store: MessageStore) -> tuple[list[tuple[int, bytes]], int]:
    return await bodies(store), put(store)[1]


def numbered(count: int) -> list[tuple[int, bytes]]:
    return [(number, b"m%d" % number) for number in range(count)]


async def put_numbered(store: MessageStore, count: int, size: int = 0) -> None:
    for number in range(count):
        put(store, body=(b"m%d" % number).ljust(size, b"."))


@pytest.mark.parametrize("seed", range(8))
def test_t01_power_loss_after_a_roll_loses_no_message(seed: int) -> None:
    async def six(store: MessageStore) -> None:
        for number in range(6):
            end = put(store, body=b"%d" % number + bytes(1000))[0]
            await store.flushed.wait_above(end)
        await trio.sleep(8)

    config = settings(sync_flush=True, mark_interval_ms=1000)
    run = session(six, config=config, seed=seed)
    cut = edited(run.image, power_cut)

    async def read(store: MessageStore) -> tuple[list[int], int]:
        return [message.queue_offset for message in pull(store)], put(store)[1]

    assert session(read, config=config, image=cut, boots=2).value == (list(range(6)), 6)


def test_t02_missing_queue_units_hide_no_record() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 5)
        await settle(store)
        await store.close()

    def erase(disk: SimDisk) -> None:
        data = disk.contents(QUEUE)
        disk.replace_contents(QUEUE, data[:60].ljust(len(data), b"\0"))

    run = session(bodies_and_next, image=edited(session(write).image, erase))
    assert run.value == (numbered(5), 5)


def test_t03_an_empty_queue_segment_is_no_message() -> None:
    async def write(store: MessageStore) -> None:
        put(store)
        await settle(store)

    image = edited(session(write).image, lambda disk: disk.replace_contents(QUEUE, bytes(200)))
    image = edited(image, lambda disk: disk.replace_contents(LOG, bytes(4096)))
    image = edited(image, lambda disk: disk.remove_name(f"{ROOT}/rocketbed.ckpt"))
    image = edited(image, lambda disk: disk.remove_name(f"{ROOT}/rocketbed.flushed"))

    async def look(store: MessageStore) -> int:
        return store.queue_max("T", 0)

    assert session(look, image=image).value == 0


def test_t03_empty_second_queue_segment_does_not_stop_the_boot() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 10)
        await settle(store)

    def add(disk: SimDisk) -> None:
        path = f"{ROOT}/consumequeue/T/0/{200:020d}"
        disk.open(path, create=True)
        disk.replace_contents(path, bytes(200))

    run = session(bodies_and_next, image=edited(session(write).image, add))
    assert run.value == (numbered(10), 10)
    assert f"{ROOT}/consumequeue/T/0/{200:020d}" not in run.image.paths()


def test_t04_cut_records_do_not_come_back() -> None:
    async def cut(store: MessageStore) -> None:
        await put_numbered(store, 3)
        target = store.max_offset
        put(store, body=b"cut 1")
        put(store, body=b"cut 2")
        await settle(store)
        await store.removal.cut(target)

    assert session(bodies, image=session(cut).image).value == numbered(3)


def test_t05_record_with_erased_properties_is_not_accepted() -> None:
    async def write(store: MessageStore) -> int:
        put(store, body=b"m0")
        await settle(store)
        return put(store, body=b"torn", properties="P\x01" + "x" * 1500 + "\x02", tag="Lost")[0]

    run = session(write)

    def lose_a_sector(disk: SimDisk) -> None:
        data = bytearray(disk.contents(LOG))
        data[1024:1536] = bytes(512)
        disk.replace_contents(LOG, bytes(data))

    image = edited(run.image, lose_a_sector)
    after = session(bodies_and_next, image=image, boots=2)
    assert after.value == ([(0, b"m0")], 1)


@pytest.mark.parametrize("missing", [1, 2, 30, 60])
@pytest.mark.parametrize("boots", [1, 2])
def test_t05_record_without_its_end_is_not_accepted(missing: int, boots: int) -> None:
    """A slave writes what arrives, whole records or not, and may be killed between two writes."""

    async def follow(store: MessageStore) -> None:
        store.log.append_raw(0, whole[: len(whole) - missing])

    async def go_on(store: MessageStore) -> tuple[int, list[bytes], bytes]:
        end = store.max_offset
        store.log.append_raw(end, whole[end:])
        while store._dispatcher.step():
            await trio.lowlevel.checkpoint()
        bodies = [message.body for message in pull(store)]
        return end, bodies, store.log.read(0, store.max_offset)

    async def write(store: MessageStore) -> bytes:
        put(store, body=b"m0", tag="One")
        second = put(store, body=b"m1", keys=("a-key-of-some-length",), tag="Two")[0]
        sizes.append(second)
        return store.log.read(0, store.max_offset)

    sizes: list[int] = []
    whole: bytes = session(write).value
    slave = settings(is_slave=True)
    killed = session(follow, config=slave).image
    after = session(go_on, config=slave, image=killed, boots=boots)
    assert after.value == (sizes[0], [b"m0", b"m1"], whole)


def test_t05_trailing_zero_in_a_property_is_not_torn() -> None:
    async def write(store: MessageStore) -> None:
        put(store, body=b"m0", properties="P\x01x\0")

    async def read(store: MessageStore) -> list[str]:
        return [message.properties["P"] for message in pull(store)]

    assert session(read, image=session(write).image).value == ["x\0"]


def test_t05_the_record_checksum_covers_tags() -> None:
    config = settings(append_property_crc=True)

    async def write(store: MessageStore) -> None:
        put(store, body=b"m0")
        await settle(store)
        put(store, body=b"m1", tag="TagA")

    run = session(write, config=config)
    at = run.image.contents(LOG).index(b"TagA")
    image = edited(run.image, lambda disk: flip_bit(disk, LOG, at * 8))
    assert session(bodies, config=config, image=image, boots=2).value == [(0, b"m0")]


def test_t06_pre_blank_units_are_no_messages() -> None:
    async def gap(store: MessageStore) -> None:
        put(store, body=b"m0")
        await settle(store)
        store.log.tail.next_queue_offsets["T", 0] = 4
        put(store, body=b"m4")
        await settle(store)

    async def look(store: MessageStore) -> object:
        first = store.get_messages("T", 0, 1, 32)
        return store.queue_min("T", 0), store.queue_max("T", 0), first.status, first.next_offset

    run = session(look, image=session(gap).image)
    assert run.value == (0, 5, GetStatus.FOUND, 5)

    async def only_late(store: MessageStore) -> None:
        store.log.tail.next_queue_offsets["T", 0] = 7
        put(store, body=b"m7")
        await settle(store)

    async def bounds(store: MessageStore) -> object:
        return store.queue_min("T", 0), await bodies(store)

    assert session(bounds, image=session(only_late).image).value == (7, [(7, b"m7")])


def test_t07_damage_in_the_middle_is_reported_and_kept() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 8, 300)
        await store._flusher.flush()

    run = session(write)
    image = edited(run.image, lambda disk: flip_bit(disk, LOG, 8 * 500))
    with pytest.raises(DamagedLog, match="Nothing was changed") as caught:
        session(nothing, image=image, boots=2)
    assert caught.value.offset < 500

    async def read(store: MessageStore) -> list[int]:
        return [message.queue_offset for message in pull(store)]

    filled = session(read, image=image, boots=2, config=settings(fill_hole_at=caught.value.offset))
    assert filled.value == [0, 2, 3, 4, 5, 6, 7]


def test_t08_dispatch_stops_at_bytes_it_cannot_read() -> None:
    async def corrupt(store: MessageStore) -> object:
        put(store, body=b"m0")
        await settle(store)
        end = store.max_offset
        put(store, body=b"m1")
        put(store, body=b"m2")
        good = store.log.read(end, 4)
        store.log.segments.write(end, b"\0\0\0\0")
        store._dispatcher._ring.clear()
        store._dispatcher._lost = True
        store._dispatcher.step()
        stuck = store.queue_max("T", 0), store._dispatcher.stuck, store.refusal()
        store.log.segments.write(end, good)
        while store._dispatcher.step():
            await trio.lowlevel.checkpoint()
        return stuck, store.queue_max("T", 0)

    (count, reason, refusal), mended = session(corrupt).value
    assert count == 1
    assert "no record at offset" in reason
    assert refusal[0] is PutStatus.SERVICE_NOT_AVAILABLE
    assert mended == 3


@pytest.mark.parametrize("boots", [1, 2])
def test_t09_index_entries_survive_a_crash(boots: int) -> None:
    async def write(store: MessageStore) -> None:
        for number in range(20):
            put(store, keys=(f"k{number}",))
            if number == 10:
                await settle(store)
        await store._flusher.flush()

    async def query(store: MessageStore) -> list[int]:
        return [
            len((await store.query("T", f"k{number}", 10, 0, 1 << 60)).records)
            for number in range(20)
        ]

    assert session(query, image=session(write).image, boots=boots).value == [1] * 20


def test_t10_failed_fsync_stops_the_store_and_leaves_abort() -> None:
    acknowledged: list[int] = []

    async def write(store: MessageStore) -> None:
        store.flushed.subscribe(acknowledged.append)
        put(store)
        await store.flushed.wait_above(0)

    def fail(disk: SimDisk) -> None:
        disk.faults.append(
            SimFault(operation="sync", path=f"{ROOT}/commitlog/*", error=errno.EIO, times=None)
        )

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        session(write, config=settings(sync_flush=True), prepare=fail)
    assert acknowledged == []


def test_t11_config_files_are_whole_after_any_crash() -> None:
    from rocketbed.chaos.backends.sim.solo import run_solo
    from rocketbed.node.broker.config_file import ConfigFile

    async def save(world: World) -> None:
        world.disk.makedirs("/config")
        await world.disk.sync_dir("/")
        file = ConfigFile(world, "/config", "topics.json")
        for number in range(3):
            await file.write({"number": number, "padding": "x" * (2000 - 900 * number)})

    async def load(world: World) -> object:
        return ConfigFile(world, "/config", "topics.json").load(lambda value: value)

    whole = run_solo(save)
    numbers = set()
    for event in range(4, whole.events + 1):
        for kind in ("kill", "power"):
            image = run_solo(save, crash_at=event, kind=kind).image
            value = run_solo(load, image=image).value
            numbers.add(None if value is None else value["number"])
    assert numbers == {None, 0, 1, 2}
    assert run_solo(load, image=whole.image).value["number"] == 2


def test_t12_stray_file_is_reported_and_left_alone() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 3)
        await settle(store)

    stray = f"{ROOT}/commitlog/x.tmp"

    def add(disk: SimDisk) -> None:
        disk.open(stray, create=True)
        disk.replace_contents(stray, b"not ours")

    async def look(store: MessageStore) -> object:
        return await bodies(store), store.recovery.findings

    run = session(look, image=edited(session(write).image, add))
    bodies_read, findings = run.value
    assert bodies_read == numbered(3)
    assert stray in findings[0]
    assert run.image.contents(stray) == b"not ours"


def test_t12_short_and_empty_files() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 3)
        await settle(store)
        await store.close()

    image = session(write).image
    empty = f"{ROOT}/commitlog/{4096:020d}"

    def make_empty(disk: SimDisk) -> None:
        disk.open(empty, create=True)

    with_empty = edited(image, make_empty)
    run = session(bodies, image=with_empty)
    assert run.value == numbered(3)
    assert empty not in run.image.paths()
    short = edited(image, lambda disk: disk.replace_contents(LOG, disk.contents(LOG)[:1000]))
    before = short.contents(LOG)
    with pytest.raises(BadStoreDirectory, match=r"not the length|bytes long"):
        session(nothing, image=short)
    assert short.contents(LOG) == before


def test_t13_a_second_node_changes_nothing() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 3)
        await settle(store)

    image = session(write).image
    before = {path: image.contents(path) for path in image.paths()}
    with pytest.raises(StoreLocked, match="held by another process"):
        session(nothing, image=image, prepare=lambda disk: disk.hold_lock(f"{ROOT}/lock"))
    assert {path: image.contents(path) for path in image.paths()} == before


def test_t13_node_notices_deleted_files() -> None:
    disks: list[SimDisk] = []

    async def write(store: MessageStore) -> None:
        put(store)
        disks[0].remove_name(LOG)
        with pytest.raises(StoreFailed):
            await store._flusher.flush()

    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreFailed, match="was deleted while this node"), flatten_subgroups=True
    ):
        session(write, prepare=disks.append)


@pytest.mark.parametrize("size", [0, 500])
def test_t13_truncated_segment_ends_the_node(size: int) -> None:
    """Bytes written after the cut would be flushed, and acknowledged, over a hole of zeros."""
    disks: list[SimDisk] = []

    async def write(store: MessageStore) -> None:
        await put_numbered(store, 8)
        await store._flusher.flush()
        disks[0].replace_contents(LOG, disks[0].contents(LOG)[:size])
        put(store)
        with pytest.raises(StoreFailed):
            await store._flusher.flush()

    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreFailed, match="was truncated while this node writes"),
        flatten_subgroups=True,
    ):
        session(write, prepare=disks.append)


class Topics(AllTopics):
    """A topic table that knows some topics."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def exists(self, topic: str) -> bool | None:
        return topic in self.topics

    def is_batch_queue(self, topic: str) -> bool:
        return False


def test_t14_deleted_topics_do_not_come_back() -> None:
    async def write(store: MessageStore) -> None:
        put(store, "Gone", body=b"old")
        put(store, "Kept")
        await settle(store)
        await store.removal.delete_topic("Gone")
        put(store, "Gone", body=b"new")

    async def look(store: MessageStore) -> object:
        assert store.get_messages("Never", 0, 0, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        return [m.body for m in pull(store, "Gone")], store.queues()

    run = session(look, image=session(write).image)
    assert run.value == ([b"new"], [("Gone", 0), ("Kept", 0)])


def test_t14_foreign_directory_is_dispatched_by_its_topic_table() -> None:
    async def write(store: MessageStore) -> None:
        put(store, "Gone")
        put(store, "Kept")
        await settle(store)

    def lose(*parts: str) -> Callable[[SimDisk], None]:
        def remove(disk: SimDisk) -> None:
            for path in [path for path in disk.paths() if any(part in path for part in parts)]:
                disk.remove_name(path)

        return remove

    foreign = edited(session(write).image, lose("consumequeue/Gone", "rocketbed.ckpt"))

    async def look(store: MessageStore) -> object:
        return (
            store.queue_max("Gone", 0),
            store.queue_max("Kept", 0),
            store.recovery.dropped_records,
        )

    taken_over = session(look, image=foreign, topics=Topics("Kept"))
    assert taken_over.value == (0, 1, 1)
    # Nor does it come back when the queues are built again later.
    without_queues = edited(taken_over.image, lose("consumequeue/Kept"))
    assert session(look, image=without_queues, topics=Topics("Kept")).value == (0, 1, 1)


def test_t14_topic_missing_from_the_table_was_not_deleted() -> None:
    async def write(store: MessageStore) -> None:
        put(store, "Lost")
        await settle(store)

    async def look(store: MessageStore) -> object:
        return store.queue_max("Lost", 0), store.recovery.dropped_records

    written = session(write).image
    for name in ("rocketbed.ckpt", "rocketbed.flushed"):
        image = edited(written, partial(SimDisk.remove_name, path=f"{ROOT}/{name}"))
        assert session(look, image=image, topics=Topics("Kept")).value == (1, 0)


def test_t15_min_is_never_above_max() -> None:
    async def expire(store: MessageStore) -> object:
        for _ in range(4):
            put(store, "Old", body=bytes(1500))
        for _ in range(8):
            put(store, "New", body=bytes(1500))
        await settle(store)
        for _ in range(4):
            store.delete_expired()
            await store._retention.round()
        return [(store.queue_min(topic, 0), store.queue_max(topic, 0)) for topic in ("Old", "New")]

    (old_min, old_max), (new_min, new_max) = session(expire, config=settings(reserved_ms=0)).value
    assert old_min == old_max == 4
    assert 0 < new_min <= new_max == 8


def test_t16_retention_uses_store_time_not_file_time() -> None:
    hour_ms = 3600 * 1000

    async def age(store: MessageStore) -> object:
        for _ in range(4):
            put(store, body=bytes(1500))
        await settle(store)
        files = store.log.segments
        files.file(0).set_modified_ms(0)
        store.delete_expired()
        await store._retention.round()
        young = store.min_offset
        files.file(0).set_modified_ms(4 * 24 * hour_ms + 1_700_000_000_000)
        await trio.sleep(2 * hour_ms / 1000)
        store.delete_expired()
        await store._retention.round()
        return young, store.min_offset

    assert session(age, config=settings(reserved_ms=hour_ms), seconds=86_400).value == (0, 4096)


def test_t17_store_times_never_fall() -> None:
    async def step_back(store: MessageStore) -> list[int]:
        put(store)
        store.log.last_store_ms += 60_000
        put(store)
        put(store)
        await settle(store)
        return [message.store_timestamp for message in pull(store)]

    times = session(step_back).value
    assert times == sorted(times)
    assert times[2] == times[1] == times[0] + 60_000


def test_t18_record_larger_than_a_segment_is_refused() -> None:
    async def large(store: MessageStore) -> object:
        run = store.begin()
        with pytest.raises(MessageRejected, match="mappedFileSizeCommitLog") as caught:
            run.add("T", 0, bytes(4096), b"", flag=0, sys_flag=0, born_ms=1, born_host=bytes(8))
        put(store)
        return caught.value.status, store.max_offset < 4096

    assert session(large).value == (PutStatus.MESSAGE_ILLEGAL, True)


def test_t19_slave_log_may_end_inside_a_record() -> None:
    async def master(store: MessageStore) -> tuple[bytes, int]:
        await put_numbered(store, 2)
        return store.log.read(0, store.max_offset), store.max_offset

    data, end = session(master).value
    config = settings(is_slave=True, mark_interval_ms=1000)

    async def follow(store: MessageStore) -> None:
        store.log.append_raw(0, data[:-5])
        await trio.sleep(5)

    run = session(follow, config=config)
    checkpoint = run.image.contents(f"{ROOT}/checkpoint")
    assert int.from_bytes(checkpoint[32:40], "big") == 0

    async def resume(store: MessageStore) -> object:
        at = store.max_offset
        store.log.append_raw(at, data[at:])
        await settle(store)
        return at, store.max_offset, await bodies(store)

    after = session(resume, config=config, image=run.image, boots=2)
    assert after.value == (end // 2, end, numbered(2))


def test_t20_last_durable_offset_is_reported() -> None:
    async def write(store: MessageStore) -> int:
        put(store, body=b"m0")
        await settle(store)
        durable = store.max_offset
        put(store, body=b"acknowledged, never flushed")
        return durable

    run = session(write)
    cut = edited(run.image, strict_power_cut)

    async def look(store: MessageStore) -> object:
        return store.recovery.last_durable, store.max_offset, (await bodies_and_next(store))[1]

    durable = run.value
    assert session(look, image=cut, boots=2).value == (durable, durable, 1)


def test_t22_other_peoples_files_stay() -> None:
    names = ["abort.bak", "config/topics.json.bak", "rocksdbstore/LOCK", "timerwheel"]

    def add(disk: SimDisk) -> None:
        disk.makedirs(f"{ROOT}/config")
        disk.makedirs(f"{ROOT}/rocksdbstore")
        for name in names:
            disk.open(f"{ROOT}/{name}", create=True)
            disk.replace_contents(f"{ROOT}/{name}", name.encode())

    async def use(store: MessageStore) -> None:
        put(store)
        await store.close()

    run = session(use, image=edited(session(nothing).image, add))
    for name in names:
        assert run.image.contents(f"{ROOT}/{name}") == name.encode()


def test_t23_lengths_are_signed() -> None:
    async def long_topic(store: MessageStore) -> bytes:
        put(store, "%RETRY%" + "g" * 193)
        return store.log.read(0, store.max_offset)

    record = session(long_topic).value
    assert HEAD.unpack_from(record)[1] == MAGIC_V2
    scanner = RecordScanner(check_crc=True, delays_ms=[])
    record += bytes(8)  # what stands behind it decides whether its end was written
    assert len(scanner.scan(record, 0, segment_end=4096).entries) == 1

    async def plain(store: MessageStore) -> bytes:
        put(store, "T" * 100)
        return store.log.read(0, store.max_offset)

    record = bytearray(session(plain).value + bytes(8))
    record[88 + 4] = 0x80 | 100
    scanned = scanner.scan(bytes(record), 0, segment_end=4096)
    assert (scanned.stop, scanned.reason) == (Stop.BAD, "negative topic length")


def test_t24_killed_recovery_resumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "MARK_EVERY", 4096)

    async def write(store: MessageStore) -> None:
        await put_numbered(store, 30, 900)
        await store._flusher.flush()

    foreign = edited(session(write).image, lambda disk: disk.remove_name(f"{ROOT}/rocketbed.ckpt"))

    async def look(store: MessageStore) -> tuple[int, int]:
        return store.recovery.scanned_from, store.queue_max("T", 0)

    events = session(look, image=foreign).events
    killed = session(look, image=foreign, crash_at=events * 2 // 3)
    scanned_from, count = session(look, image=killed.image).value
    assert scanned_from >= 4096
    assert count == 30


def test_t07_scrub_finds_damage_below_the_mark() -> None:
    async def write(store: MessageStore) -> None:
        await put_numbered(store, 8, 300)
        await settle(store)

    image = edited(session(write).image, lambda disk: flip_bit(disk, LOG, 8 * 500))

    async def look(store: MessageStore) -> object:
        await store.scrubber.finished.wait()
        (damage,) = store.scrubber.damage
        return damage.start < 500 < damage.end, damage.reason, store.runtime_info()["damagedRanges"]

    damage_found, reason, ranges = session(look, image=image, boots=2).value
    assert damage_found
    assert reason == "body CRC does not match"
    assert "-" in ranges
