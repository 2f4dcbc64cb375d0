"""Deleted topics: while others go on sending, with crashes at any moment, and built anew later."""

import re

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.errors import DamagedLog
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.command import RequestCode, request
from tests.support.broker import Session, send_fields, with_node
from tests.support.sim.filled_store import segments_of
from tests.support.sim.store_session import (
    ROOT,
    Work,
    edited,
    flip_bit,
    pull,
    put,
    session,
    settings,
    settle,
)


def slow(disk: SimDisk) -> None:
    disk.sync_seconds = (0.001, 0.02)


async def delete_while_marks_rise(store: MessageStore) -> None:
    """Topics are deleted while another task raises the durable mark, as it does every second."""
    for topic in ("A", "B", "C"):
        for number in range(5):
            put(store, topic, body=b"%d" % number)
    await settle(store)
    async with trio.open_nursery() as nursery:
        for topic in ("A", "B"):
            nursery.start_soon(store.removal.delete_topic, topic)
        for number in range(8):
            if number < 4:
                put(store, "A", body=b"late")
            await store._checkpointer.raise_mark()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "power"])
def test_deletion_during_rising_marks_leaves_a_true_mark(kind: str) -> None:
    async def look(store: MessageStore) -> tuple[str, int]:
        return store.recovery.reason, len(pull(store, "C"))

    whole = session(delete_while_marks_rise, prepare=slow)
    for event in range(60, whole.events + 1):
        crashed = session(delete_while_marks_rise, prepare=slow, crash_at=event, kind=kind)
        boots = 1 if kind == "kill" else 2
        reason, count = session(look, image=crashed.image, boots=boots).value
        assert reason == "", f"{kind} at event {event}"
        assert count in range(6)


@pytest.mark.slow
def test_power_cut_restores_no_deleted_directory() -> None:
    """Seed 1271514."""

    async def look(store: MessageStore) -> list[str]:
        disk, path = store._world.disk, f"{ROOT}/consumequeue"
        names = disk.listdir(path) if disk.exists(path) else []
        return [
            name for name in names if name in store.removal.deletions() and not pull(store, name)
        ]

    whole = session(delete_while_marks_rise, prepare=slow)
    for event in range(60, whole.events + 1):
        crashed = session(delete_while_marks_rise, prepare=slow, crash_at=event, kind="power")
        directories = session(look, image=crashed.image, boots=2).value
        assert directories == [], f"event {event}"


def test_recreated_topic_is_found_after_a_rebuild() -> None:
    """Its old messages have the same queue offsets and come first in the log."""

    async def work(store: MessageStore) -> None:
        for number in range(5):
            put(store, body=b"old %d" % number, keys=(f"o{number}",))
        await settle(store)
        await store.removal.delete_topic("T")
        for number in range(3):
            put(store, body=b"new %d" % number, keys=(f"n{number}",))
        await settle(store)

    def remove_index(disk: SimDisk) -> None:
        for path in disk.paths():
            if path.startswith(f"{ROOT}/index/"):
                disk.remove_name(path)

    async def look(store: MessageStore) -> object:
        return store.recovery.took_over, [message.body for message in pull(store)]

    image = edited(session(work).image, remove_index)
    assert session(look, image=image, config=settings()).value == (
        True,
        [b"new 0", b"new 1", b"new 2"],
    )


@pytest.mark.slow
def test_topic_under_load_can_be_deleted() -> None:
    async def scenario(session: Session) -> tuple[float, int, set[int]]:
        session.world.disk.sync_seconds = (0.002, 0.01)  # type: ignore[attr-defined]
        codes: set[int] = set()

        async def send_on() -> None:
            while True:
                command = request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")
                codes.add((await session.connection.request(command)).code)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(send_on)
            await trio.sleep(0.5)
            began = trio.current_time()
            answer = await session.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            seconds = trio.current_time() - began
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        store = session.node.store
        assert store.queue_min("T", 0) == 0
        assert len(await session.messages()) == store.queue_max("T", 0) > 0
        return seconds, answer.code, codes

    seconds, code, codes = with_node(scenario)
    assert (code, seconds < 2) == (0, True)
    assert {0} <= codes <= {0, 17}


OLD, NEW = 20, 6


async def made_again(store: MessageStore) -> None:
    """A topic with old messages, deleted, and recreated; the last message is another topic's."""
    for number in range(OLD):
        put(store, body=b"old %d" % number)
    await settle(store)
    await store.removal.delete_topic("T")
    for number in range(NEW):
        put(store, body=b"new %d" % number)
    put(store, "U", body=b"last")
    await settle(store)


async def made_again_and_closed(store: MessageStore) -> None:
    await made_again(store)
    await store.close()


async def made_again_and_more(store: MessageStore) -> None:
    await made_again(store)
    for number in range(NEW, 2 * NEW):
        put(store, body=b"new %d" % number)
    await store._flusher.flush()


def bit_of_the_record_at_the_mark(disk: SimDisk) -> None:
    """Bit of the last record of the other topic."""
    path = segments_of(disk.image())[0]
    flip_bit(disk, path, disk.contents(path).index(b"last") * 8)


def ways_out(image: DiskImage) -> dict[str, int]:
    """The orders that a start which refuses offers, each with its offset."""
    with pytest.raises(DamagedLog) as caught:
        session(made_again, image=image)
    return {key: int(at) for key, at in re.findall(r"--set (\w+)=(\d+)", str(caught.value))}


async def found_of(store: MessageStore) -> list[bytes]:
    await settle(store)
    return [message.body for message in pull(store)]


@pytest.mark.parametrize("work", [made_again, made_again_and_closed])
def test_deletion_survives_a_cut_after_it(work: Work) -> None:
    image = edited(session(work).image, bit_of_the_record_at_the_mark)
    offset = ways_out(image)["rbAcceptCut"]
    run = session(found_of, image=image, config=settings(accept_cut_at=offset))
    assert run.value == [b"new %d" % number for number in range(NEW)]


def test_deletion_survives_a_closed_hole_after_it() -> None:
    image = edited(session(made_again_and_more).image, bit_of_the_record_at_the_mark)
    offset = ways_out(image)["rbFillHole"]
    run = session(found_of, image=image, config=settings(fill_hole_at=offset))
    assert run.value == [b"new %d" % number for number in range(2 * NEW)]


def test_messages_after_a_cut_below_a_deletion_stay() -> None:
    """The log ends below the place of the deletion, and goes on there."""

    def cut_into_the_old(disk: SimDisk) -> None:
        path = segments_of(disk.image())[0]
        data = disk.contents(path)
        disk.replace_contents(path, data[: data.index(b"old 12")].ljust(len(data), b"\0"))

    async def go_on(store: MessageStore) -> list[bytes]:
        before = await found_of(store)
        put(store, body=b"after")
        await settle(store)
        await store.close()
        return before

    image = edited(session(made_again_and_closed).image, cut_into_the_old)
    offset = ways_out(image)["rbAcceptCut"]
    first = session(go_on, image=image, config=settings(accept_cut_at=offset))
    assert first.value == []
    assert session(found_of, image=first.image).value == [b"after"]
