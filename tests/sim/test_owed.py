"""Bytes that a slave's log lost are owed by a master: until they come, the node is no master."""

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.inspect.record import Record, dissect
from rocketbed.node.store.errors import DamagedLog
from rocketbed.node.store.store import MessageStore
from tests.support.sim.filled_store import check, fill_and_close, last_record, segments_of
from tests.support.sim.store_session import ROOT, edited, put, session, settings, settle

SLAVE = settings(is_slave=True)
MASTER = settings()


def zeroed(disk: SimDisk) -> None:
    path, at, _ = last_record(disk)
    data = disk.contents(path)
    disk.replace_contents(path, data[:at].ljust(len(data), b"\0"))


async def ends_of(store: MessageStore) -> tuple[int, int]:
    ends = store._parts.log.flushed.value, store._parts.marks.mark.resend_to
    await store.close()
    return ends


def as_slave(image: DiskImage) -> tuple[DiskImage, tuple[int, int]]:
    run = session(ends_of, image=image, config=SLAVE)
    return run.image, run.value


@pytest.mark.parametrize("starts", [1, 3])
def test_slave_without_its_end_is_no_master_until_resent(starts: int) -> None:
    good = session(fill_and_close).image
    image = edited(good, zeroed)
    for _ in range(starts):
        image, (end, owed_end) = as_slave(image)
        assert end < owed_end
    with pytest.raises(DamagedLog, match=f"was on disk up to offset {owed_end}"):
        session(ends_of, image=image, config=MASTER)
    with pytest.raises(DamagedLog, match=f"was on disk up to offset {owed_end}"):
        _ = run_solo(check, MASTER, image=image).value
    owed_bytes = b"".join(good.contents(path) for path in segments_of(good))[end:owed_end]

    async def follow(store: MessageStore) -> None:
        store.log.append_raw(end, owed_bytes)
        await settle(store)
        await store.close()

    whole = session(follow, image=image, config=SLAVE).image
    assert session(ends_of, image=whole, config=MASTER).value == (owed_end, -1)


def test_operator_may_give_up_owed_bytes() -> None:
    image, (end, _) = as_slave(edited(session(fill_and_close).image, zeroed))

    async def go_on(store: MessageStore) -> int:
        put(store, body=b"new")
        await settle(store)
        return len(store._parts.marks.mark.accepted)

    run = session(go_on, image=image, config=settings(accept_cut_at=end))
    assert run.value == 1
    assert session(ends_of, image=run.image, config=MASTER).value[1] == -1


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_log_ending_after_a_blank_record_lost_nothing(kind: str) -> None:
    """A start takes away the segment made ahead; one that is killed then leaves the blank record as
    the last of all, which is on disk as far as F says."""
    good = session(fill_and_close).image
    first = good.contents(segments_of(good)[0])
    size, blank = len(first), 0
    while isinstance(record := dissect(first, blank, blank), Record):
        blank += record.size
    # Without power F may be forgotten, and the blank record with it: no message is in that.
    right = {(size, -1)} if kind == "kill" else {(size, -1), (blank, -1)}

    async def follow(store: MessageStore) -> None:
        store.log.append_raw(0, first)
        await store.log.prepare_next()
        while store._dispatcher.step():
            await trio.lowlevel.checkpoint()
        await store._flusher.flush()
        assert store.flushed.value == size

    image = session(follow, config=SLAVE).image
    whole = session(ends_of, image=image, config=SLAVE)
    assert whole.value == (size, -1)
    for event in range(1, whole.events + 1):
        boots = 1 if kind == "kill" else 2
        second_run = session(
            ends_of, image=image, config=SLAVE, boots=boots, crash_at=event, kind=kind, seed=event
        )
        boots += kind == "power"
        third_run = session(ends_of, image=second_run.image, config=SLAVE, boots=boots, seed=-event)
        assert third_run.value in right, event
        assert session(ends_of, image=third_run.image, config=MASTER, boots=boots).value in right


def test_a_cut_by_a_new_master_owes_nothing() -> None:
    image, (end, _) = as_slave(edited(session(fill_and_close).image, zeroed))

    async def cut(store: MessageStore) -> int:
        below = await store.removal.boundary_below(end - 1)
        assert below is not None
        await store.removal.cut(below.end)
        return below.end

    run = session(cut, image=image, config=SLAVE)
    assert session(ends_of, image=run.image, config=MASTER).value == (run.value, -1)
    assert any(path.startswith(f"{ROOT}/commitlog") for path in run.image.paths())
