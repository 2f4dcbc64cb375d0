"""What a slave's log lost is owed by a master: until it came, the node is no master itself."""

import pytest

from rocketbed.chaos.sim.disk import SimDisk
from rocketbed.chaos.sim.disk_image import DiskImage
from rocketbed.chaos.sim.solo import run_solo
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
    ends = store._parts.log.flushed.value, store._parts.marks.mark.owed
    await store.close()
    return ends


def as_slave(image: DiskImage) -> tuple[DiskImage, tuple[int, int]]:
    run = session(ends_of, image=image, config=SLAVE)
    return run.image, run.value


@pytest.mark.parametrize("starts", [1, 3])
def test_a_slave_that_lost_its_end_is_no_master_until_it_was_sent_again(starts: int) -> None:
    good = session(fill_and_close).image
    image = edited(good, zeroed)
    for _ in range(starts):
        image, (end, owed) = as_slave(image)
        assert end < owed
    with pytest.raises(DamagedLog, match=f"was on disk up to offset {owed}"):
        session(ends_of, image=image, config=MASTER)
    with pytest.raises(DamagedLog, match=f"was on disk up to offset {owed}"):
        _ = run_solo(check, MASTER, image=image).value
    again = b"".join(good.contents(path) for path in segments_of(good))[end:owed]

    async def follow(store: MessageStore) -> None:
        store.log.append_raw(end, again)
        await settle(store)
        await store.close()

    whole = session(follow, image=image, config=SLAVE).image
    assert session(ends_of, image=whole, config=MASTER).value == (owed, -1)


def test_an_operator_may_give_up_what_is_owed() -> None:
    image, (end, _) = as_slave(edited(session(fill_and_close).image, zeroed))

    async def go_on(store: MessageStore) -> int:
        put(store, body=b"new")
        await settle(store)
        return len(store._parts.marks.mark.accepted)

    run = session(go_on, image=image, config=settings(accept_cut_at=end))
    assert run.value == 1
    assert session(ends_of, image=run.image, config=MASTER).value[1] == -1


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
