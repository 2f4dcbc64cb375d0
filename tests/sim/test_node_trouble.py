"""A node's requests when something else happens at the same time: crashes, deletions, bad reads."""

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import check_node
from rocketbed.node.store.errors import StoreFailed
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.message import decode_messages
from tests.support.broker import SMALL, STORE, Session, node_run, with_node
from tests.support.sim.store_session import edited

DELETE = {"topic": "T"}


async def fill_and_delete(session: Session) -> tuple[int, int]:
    """Delete a topic with messages; the disk's events before and after that."""
    for number in range(5):
        assert (await session.send(body=b"old %d" % number)).code == 0
    await session.node.store.dispatched.wait_for(session.node.store.max_offset)
    before = session.world.disk.events  # type: ignore[attr-defined]
    assert (await session.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DELETE)).code == 0
    return before, session.world.disk.events  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "power"])
def test_deletion_interrupted_by_a_crash_can_be_repeated(kind: str) -> None:
    async def delete_again(session: Session) -> tuple[str, list[bytes]]:
        answer = await session.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DELETE)
        assert answer.code == 0
        sent = await session.send(body=b"new")
        return sent.fields["queueOffset"], [found.body for found in await session.messages()]

    begin, end = with_node(fill_and_delete)
    for event in range(begin, end + 1):
        crashed = node_run(fill_and_delete, crash_at=event, kind=kind)
        boots = 1 if kind == "kill" else 2
        result = node_run(delete_again, image=crashed.image, boots=boots).value
        assert result == ("0", [b"new"]), f"{kind} at event {event}"


def test_send_to_a_topic_deleted_meanwhile_is_answered() -> None:
    async def scenario(session: Session) -> list[int]:
        session.world.disk.sync_seconds = (0.2, 0.2)  # type: ignore[attr-defined]
        codes: list[int] = []

        async def send() -> None:
            codes.append((await session.send("New")).code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.1)
            assert session.node.tables.topics.delete("New")
            with trio.move_on_after(10):
                while not codes:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return codes

    assert with_node(scenario) == [0]


@pytest.mark.parametrize("content", [None, b"{}"])
def test_topics_of_a_lost_table_are_rebuilt_from_queues(content: bytes | None) -> None:
    async def fill(session: Session) -> None:
        for number in range(6):
            await session.send("A", b"%d" % number, queue_id=number % 2)
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)

    def lose(disk: SimDisk) -> None:
        for path in [path for path in disk.paths() if "/topics.json" in path]:
            disk.remove_name(path)
            if content is not None:
                disk.replace_contents(path, content)

    async def look(session: Session) -> list[bytes]:
        messages_read = [*await session.messages("A"), *await session.messages("A", queue_id=1)]
        return [message.body for message in messages_read]

    image = edited(node_run(fill).image, lose)
    expected = [b"0", b"2", b"4", b"1", b"3", b"5"]
    first = node_run(look, image=image)
    assert first.value == expected
    assert node_run(look, image=first.image).value == expected


def test_topic_with_a_rotten_name_is_restored() -> None:
    """A wrong byte in the name leaves a table that reads well; the index is lost beside it."""

    async def fill(session: Session) -> None:
        for number in range(3):
            await session.send("Alpha", b"%d" % number, properties={"KEYS": "k"})
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)

    def rot(disk: SimDisk) -> None:
        path = f"{STORE}/config/topics.json"
        disk.replace_contents(path, disk.contents(path).replace(b"Alpha", b"Blpha"))

    def lose_index(disk: SimDisk) -> None:
        rot(disk)
        for path in [path for path in disk.paths() if "/index/" in path]:
            disk.remove_name(path)

    async def look(session: Session) -> tuple[list[bytes], str]:
        bodies = [message.body for message in await session.messages("Alpha")]
        return bodies, (await session.send("Alpha", b"next")).fields["queueOffset"]

    filled = node_run(fill).image
    for hurt in (rot, lose_index):
        image = edited(filled, hurt)
        lines = run_solo(
            check_node, make_config(settings_from_options(SMALL))[0], image=image
        ).value
        assert any("Alpha has messages and is not in topics.json" in line for line in lines)
        assert node_run(look, image=image).value == ([b"0", b"1", b"2"], "3")


@pytest.mark.parametrize(
    ("old", "new", "prefix"),
    [
        (b'"readQueueNums":4', b'"readQueueNums":0', "A has messages in queue 2, and readQueueN"),
        (b'"perm":6', b'"perm":2', "A has messages, and perm=2 lets nobody read them"),
        (b'"readQueueNums":4', b'"readQueueNums":2000000000', "A has readQueueNums=2000000000"),
    ],
)
def test_row_hiding_messages_is_reported(old: bytes, new: bytes, prefix: str) -> None:
    async def fill(session: Session) -> None:
        await session.send("A", queue_id=2)
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)

    def rot(disk: SimDisk) -> None:
        path = f"{STORE}/config/topics.json"
        before, name, rows = disk.contents(path).partition(b'"A":{')
        assert old in rows
        disk.replace_contents(path, before + name + rows.replace(old, new, 1))

    async def look(session: Session) -> list[str]:
        return session.node.tables.topics.remarks(session.node.store.queue_keys())

    filled = node_run(fill).image
    config = make_config(settings_from_options(SMALL))[0]
    assert node_run(look, image=filled).value == []
    image = edited(filled, rot)
    lines = run_solo(check_node, config, image=image).value
    assert [line for line in lines if line.startswith(prefix)] == node_run(look, image=image).value


def test_held_pull_of_an_unreadable_queue_gets_an_error() -> None:
    async def scenario(session: Session) -> tuple[Command, list[bytes]]:
        assert (await session.send(body=b"first")).code == 0
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(await session.pull(offset=1, flags=6, hold_ms=15_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(1)
            session.world.disk.faults.append(  # type: ignore[attr-defined]
                SimFault(operation="read", path=f"{STORE}/consumequeue/T/*")
            )
            assert (await session.send(body=b"second")).code == 0
        after = await session.pull(offset=1)
        return answers[0], [message.body for message in decode_messages(after.body)]

    held_answer, later = with_node(scenario)
    assert held_answer.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in (held_answer.remark or "")
    assert later == [b"second"]


async def send_until_refused(session: Session) -> float:
    """Send until the connection is gone; seconds until then."""
    began = trio.current_time()
    while True:
        try:
            await session.send(body=b"more")
        except RemotingError:
            return trio.current_time() - began
        await trio.sleep(0.01)


def test_failed_log_sync_promises_nothing_more() -> None:
    """Found by disk-sick seed 2: the slow sync of a mark held up the end, and the node went on."""
    ended: list[float] = []

    async def scenario(session: Session) -> None:
        disk = session.world.disk
        slow = SimFault(operation="sync", path="*rocketbed.ckpt*", effect="delay", seconds=30.0)
        disk.faults.append(slow)  # type: ignore[attr-defined]
        assert (await session.send(body=b"first")).code == 0
        while not slow.fired:  # noqa: ASYNC110
            await trio.sleep(0.1)
        broken = SimFault(operation="sync", path=f"{STORE}/commitlog/*")
        disk.faults.append(broken)  # type: ignore[attr-defined]
        assert (await session.send(body=b"second")).code == 0
        ended.append(await send_until_refused(session))

    with pytest.RaisesGroup(StoreFailed, flatten_subgroups=True):
        with_node(scenario)
    assert len(ended) == 1
    assert ended[0] < 2.0
