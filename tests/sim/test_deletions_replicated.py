"""A topic deleted and recreated on the master: messages that its slaves serve, now and as masters.

The queue offsets begin at 0 again, so a slave that does not know of the deletion has no place for
the new messages. It learns of it with the master's tables.
"""

import errno
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.client.consumer import Consumer
from rocketbed.cluster.log_ends import NodeEnd, missing_in
from rocketbed.cluster.plan import ClusterMember
from rocketbed.cluster.status import MemberStatus
from rocketbed.inspect.directory import open_directory
from rocketbed.inspect.rebuild import rebuild, rebuild_in_place
from rocketbed.node.replication import CopiedTables
from rocketbed.node.store.errors import StoreError
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.client import dial
from rocketbed.wire.codes import RequestCode
from rocketbed.wire.command import request
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, PORT
from tests.support.sim.links import cut, heal
from tests.support.sim.promotion import Group
from tests.support.sim.store_session import ROOT, edited, pull, put, session, settings, settle

OLD, NEW = 24, 36
SLAVE = settings(is_slave=True)


def bodies(store: MessageStore) -> list[str]:
    """Return the bodies that can be pulled of topic T, sorted."""
    bodies_read = [
        message.body.decode().split()[0]
        for topic, queue_id in store.queues()
        if topic == "T"
        for message in pull(store, topic, queue_id)
    ]
    return sorted(bodies_read)


def expected(count: int = NEW, prefix: str = "new") -> list[str]:
    return sorted(f"{prefix}-{number}" for number in range(count))


class Deletions(Group):
    """A group whose master deletes topics."""

    def delete(self, name: str = "b1") -> None:
        async def main(world: World) -> None:
            connection = await dial(world, (name, PORT))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                assert (await connection.request(request(code, {"topic": "T"}))).code == 0
                connection.close()

        self.run(main)

    def served(self, name: str) -> list[str]:
        bodies_served: list[str] = self.simulation.process(name).call(
            bodies, self.nodes[name].store
        )
        return bodies_served

    def unqueued(self, name: str) -> dict[str, tuple[int, int, int]]:
        return self.nodes[name].store.unqueued()


def begin(group: Deletions, *, size: int = 300, period_ms: int = 500) -> None:
    """b1 with the slave b2, and old messages that both have."""
    group.start("b1", "b2", metadata_sync_ms=period_ms)
    group.simulation.run(2)
    group.send(OLD, prefix="old", size=size)
    group.run_until_equal("b2")
    group.simulation.run(2)
    assert group.served("b2") == expected(OLD, "old")


def fail_over(group: Deletions) -> None:
    """b1 is gone for good, b2 is the master."""
    group.end("b1")
    group.promote("b2")
    group.restart("b2")
    group.simulation.run(2)


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
@pytest.mark.parametrize("period_ms", [500, 60_000])
def test_between_two_copies_of_the_tables(period_ms: int, how: str, tmp_path: Path) -> None:
    """With the longer period it is the first message without a place that makes the slave ask."""
    with Deletions(1, sync=True, sync_flush=how == "power") as group:
        begin(group, period_ms=period_ms)
        group.delete()
        group.send(NEW, prefix="new")
        group.run_until_equal("b2")
        group.simulation.run(2)
        assert group.served("b1") == group.served("b2") == expected()
        assert group.unqueued("b2") == {}
        if how != "stop":
            group.end("b2", power="random" if how == "power" else "")
            group.start("b2", metadata_sync_ms=period_ms)
            group.simulation.run(2)
            assert group.served("b2") == expected()
        fail_over(group)
        assert group.served("b2") == expected()
        group.send(3, prefix="more")
        assert len(group.served("b2")) == NEW + 3
        group.restart("b2")
        group.simulation.run(2)
        group.check_directory("b2", tmp_path)


def test_power_cut_restores_no_deleted_positions() -> None:
    """A slave saves its copies now and then; the deletion is durable at once (seed 859729)."""
    with Deletions(1, sync=True, sync_flush=True) as group:

        def position(name: str) -> int:
            offsets = group.nodes[name].tables.offsets
            table = group.simulation.process(name).call(offsets.body).offset_table
            return max(table.get("T@cg", {0: -1}).values())

        async def read(world: World) -> None:
            async with Consumer(world, nameservers=NAMESERVERS, group="cg") as consumer:
                await consumer.subscribe("T", start="first")
                count = 0
                while count < OLD:
                    count += len(await consumer.poll())
                await consumer.poll(timeout_s=0)
                await consumer.commit()

        group.start("b1", "b2", flush_offsets_ms=10_000)
        group.simulation.run(2)
        group.send(OLD, prefix="old")
        group.run(read)
        group.simulation.run(12)  # until it has been copied and saved
        assert position("b2") > 0
        group.delete()  # the next save would come in some seconds
        group.send(NEW, prefix="new")
        group.run_until_equal("b2")
        group.simulation.run(2)
        group.end("b1")
        group.end("b2", power="random")
        group.promote("b2")
        group.start("b2")
        group.simulation.run(2)
        assert group.served("b2") == expected()
        assert position("b2") == -1


def test_several_times(tmp_path: Path) -> None:
    with Deletions(2) as group:
        begin(group)
        for number in range(4):
            group.delete()
            group.send(10 + 3 * number, prefix=f"round{number}")
            group.simulation.run(0.1)
        group.run_until_equal("b2")
        group.simulation.run(2)
        assert group.served("b2") == expected(19, "round3")
        fail_over(group)
        assert group.served("b2") == expected(19, "round3")


@pytest.mark.parametrize("size", [300, 6000])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_while_the_slave_was_away(how: str, size: int) -> None:
    """It gets the log and the tables at once, in any order."""
    with Deletions(3) as group:
        begin(group, size=size)
        if how == "kill":
            group.end("b2")
        else:
            process = group.simulation.process("b2")
            group.simulation.stop("b2")
            group.simulation.run(20, until=lambda: process.done)
        group.send(5, prefix="late", size=size)
        group.delete()
        group.send(NEW, prefix="new", size=size)
        group.start("b2")
        group.run_until_equal("b2")
        group.simulation.run(2)
        assert group.served("b2") == expected()
        group.end("b2")
        group.start("b2")
        group.simulation.run(2)
        assert group.served("b2") == expected()
        fail_over(group)
        assert group.served("b2") == expected()


@pytest.mark.slow
def test_a_slave_that_is_killed_while_it_learns() -> None:
    """At every moment from the first record that has no place."""
    for at in range(0, 60, 3):
        with Deletions(4) as group:
            begin(group)
            cut(group.simulation.network, "b1", "b2")
            group.delete()
            group.send(NEW, prefix="new")
            heal(group.simulation.network)
            store = group.nodes["b2"].store
            group.simulation.run(10, until=lambda store=store: store.odd_records > 0)  # type: ignore[misc]
            group.simulation.run(at / 1000)
            group.end("b2")
            group.start("b2")
            group.run_until_equal("b2")
            group.simulation.run(2)
            assert group.served("b2") == expected(), at
            fail_over(group)
            assert group.served("b2") == expected(), at


def test_other_topic_is_unchanged() -> None:
    async def work(store: MessageStore) -> None:
        for number in range(10):
            put(store, "T", body=b"old-%d" % number)
            put(store, "U", body=b"u-%d" % number)
        at = store.max_offset
        for number in range(10):
            put(store, "U", body=b"u-%d" % (number + 10))
        await settle(store)
        await store.removal.learn_deletions({"T": at, "V": at})
        assert [len(pull(store, topic)) for topic in ("T", "U")] == [0, 20]
        assert store.removal.deletions() == {"T": at, "V": at}

    run = session(work)

    async def look(store: MessageStore) -> list[int]:
        assert store.recovery.reason == ""
        return [len(pull(store, topic)) for topic in ("T", "U")]

    assert session(look, image=run.image).value == [0, 20]


async def master(store: MessageStore) -> tuple[bytes, int, int]:
    """Ten old messages, a deletion, twelve new ones: the log, where the new ones begin, and the
    deletion as a slave is told of it."""
    for number in range(10):
        put(store, body=b"old-%d" % number, keys=(f"o{number}",))
    await settle(store)
    await store.removal.delete_topic("T")
    at = store.max_offset
    for number in range(12):
        put(store, body=b"new-%d" % number, keys=(f"n{number}",))
    await settle(store)
    log = b"".join(store.log.read(start, 4096) for start in range(0, store.max_offset, 4096))
    return log[: store.max_offset], at, store.removal.deletions()["T"]


async def append(store: MessageStore, log: bytes) -> None:
    for start in range(store.max_offset, len(log), 4096):
        store.log.append_raw(start, log[start : start + 4096])
    await settle(store)


@pytest.fixture(scope="module")
def deleted_log() -> tuple[bytes, int, int]:
    result: tuple[bytes, int, int] = session(master).value
    assert result[1] == result[2]
    return result


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_at_any_moment_of_learning(kind: str, deleted_log: tuple[bytes, int, int]) -> None:
    log, at, _ = deleted_log

    async def follow(store: MessageStore) -> None:
        await append(store, log)
        assert len(bodies(store)) == 12

    async def learn(store: MessageStore) -> None:
        await store.removal.learn_deletions({"T": at})

    async def look(store: MessageStore) -> list[str]:
        # What the master sends again, and tells.
        await append(store, log)
        await store.removal.learn_deletions({"T": at})
        return bodies(store)

    image = session(follow, config=SLAVE).image
    whole = session(learn, config=SLAVE, image=image)
    assert session(look, config=SLAVE, image=whole.image).value == expected(12)
    for event in range(1, whole.events + 1, 2):
        crashed = session(learn, config=SLAVE, image=image, crash_at=event, kind=kind)
        boots = 1 if kind == "kill" else 2
        rerun = session(look, image=crashed.image, config=SLAVE, boots=boots)
        assert rerun.value == expected(12), event


def test_messages_that_a_full_disk_holds_up_meanwhile() -> None:
    """Dispatch leaves the units of a topic whose queues are being recreated to that task, also of
    messages that it has taken and cannot write."""
    disks: list[SimDisk] = []

    async def lead(store: MessageStore) -> tuple[bytes, int, int]:
        put(store, body=b"old")
        await settle(store)
        await store.removal.delete_topic("T")
        at = half = store.max_offset
        for number in range(12):
            half = store.max_offset if number == 6 else half
            put(store, body=b"new-%d" % number)
            put(store, "U", body=b"u")
        await settle(store)
        return store.log.read(0, store.max_offset), at, half

    async def follow(store: MessageStore) -> list[str]:
        await append(store, log[:half])
        queues = store._parts.queues
        write = queues.write_pending

        def write_and_receive() -> None:
            write()
            if "T" in queues.remaking:
                queues.write_pending = write  # type: ignore[method-assign]
                path = f"{ROOT}/consumequeue/U/*"
                disks[0].faults.append(SimFault(operation="write", path=path, error=errno.ENOSPC))
                store.log.append_raw(half, log[half:])
                store._dispatcher.step()

        queues.write_pending = write_and_receive  # type: ignore[assignment, method-assign]
        with pytest.raises(StoreError, match=r"queues of T are not made again: .*No space left"):
            await store.removal.learn_deletions({"T": at})
        await trio.sleep(3)
        await store.removal.learn_deletions({"T": at})
        await settle(store)
        return bodies(store)

    log, at, half = session(lead).value
    assert session(follow, config=SLAVE, prepare=disks.append).value == expected(12)


def test_a_deletion_that_the_log_has_not_reached(deleted_log: tuple[bytes, int, int]) -> None:
    """Messages below it are deleted all the same, and nothing is promised above the end."""
    log, at, _ = deleted_log

    async def work(store: MessageStore) -> list[str]:
        for end in (at // 2, at, len(log)):
            await append(store, log[:end])
            await store.removal.learn_deletions({"T": at})
            assert store.removal.deletions().get("T", 0) <= store.dispatched.value
        return bodies(store)

    assert session(work, config=SLAVE).value == expected(12)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_deletion_that_the_log_reaches_soon(
    leaves: bool, deleted_log: tuple[bytes, int, int]
) -> None:
    """A slave that begins with nothing is told of it before it has the log (seed 1299045). What
    comes from another master meanwhile is not what was deleted."""
    log, at, _ = deleted_log

    async def work(store: MessageStore) -> tuple[list[str], dict[str, int]]:
        offsets = SimpleNamespace(save=trio.lowlevel.checkpoint)
        node: Any = SimpleNamespace(config_dir="", offsets=offsets)
        tables, masters = CopiedTables(node, node, store, node), ["b1"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.learn_deletions, {"T": at}, lambda: masters == ["b1"])
            await trio.testing.wait_all_tasks_blocked()
            if leaves:
                masters[:] = ["b3"]
            await append(store, log)
        return bodies(store), store.removal.deletions()

    bodies_read, deleted = session(work, config=SLAVE).value
    if leaves:
        assert (bodies_read[-10:], deleted) == (expected(10, "old"), {})
    else:
        assert (bodies_read, deleted) == (expected(12), {"T": at})


def test_a_cut_below_a_deletion_takes_it_back(deleted_log: tuple[bytes, int, int]) -> None:
    """Messages after the cut are another master's, and were not deleted there."""
    log, at, _ = deleted_log

    async def work(store: MessageStore) -> tuple[list[str], dict[str, int]]:
        await append(store, log)
        await store.removal.learn_deletions({"T": at})
        below = await store.removal.boundary_below(at - 50)
        assert below is not None
        await store.removal.cut(below.end)
        await append(store, log[:at])
        return bodies(store), store.removal.deletions()

    served, deletions = session(work, config=SLAVE).value
    assert served == ["old-9"]
    assert deletions["T"] < at


def test_deletion_that_a_cut_took_back_is_learned_again(
    deleted_log: tuple[bytes, int, int],
) -> None:
    """The next master has the same deletion."""
    log, at, _ = deleted_log

    async def work(store: MessageStore) -> tuple[list[str], dict[str, int]]:
        for _ in range(2):
            await append(store, log)
            await store.removal.learn_deletions({"T": at})
            assert bodies(store) == expected(12)
            below = await store.removal.boundary_below(at - 50)
            assert below is not None
            await store.removal.cut(below.end)
        await append(store, log)
        await store.removal.learn_deletions({"T": at})
        return bodies(store), store.removal.deletions()

    assert session(work, config=SLAVE).value == (expected(12), {"T": at})


def test_a_cut_takes_away_what_had_no_place(deleted_log: tuple[bytes, int, int]) -> None:
    log, at, _ = deleted_log

    async def work(store: MessageStore) -> tuple[list[str], object, object]:
        await append(store, log)
        before = store.unqueued()
        await store.removal.cut(at)
        return bodies(store), before, store.unqueued()

    assert session(work, config=SLAVE).value == (expected(10, "old"), {"T": (at, 10, at)}, {})


def test_no_record_crosses_the_offset_searched_below() -> None:
    """Otherwise a cut leaves a record whose last bytes are not the master's."""

    async def work(store: MessageStore) -> None:
        ends = [0]
        for number in range(3):
            put(store, body=b"m-%d" % number)
            ends.append(store.max_offset)
        await settle(store)
        for back in range(1, 20):
            below = await store.removal.boundary_below(ends[-1] - back)
            assert below is not None
            assert below.end == ends[-2], back

    session(work)


def without_mark(image: DiskImage) -> DiskImage:
    def change(disk: SimDisk) -> None:
        for name in ("rocketbed.ckpt", "rocketbed.flushed", "checkpoint"):
            disk.remove_name(f"{ROOT}/{name}")

    return edited(image, change)


def test_rebuild_uses_the_learned_deletion(
    deleted_log: tuple[bytes, int, int], tmp_path: Path
) -> None:
    log, at, _ = deleted_log

    async def learn(store: MessageStore) -> None:
        await append(store, log)
        await store.removal.learn_deletions({"T": at})
        await store.close()

    image = session(learn, config=SLAVE).image
    image.export(str(tmp_path))
    with closing(open_directory(f"{tmp_path}{ROOT}")) as opened:
        report = rebuild_in_place(opened)
    assert (report.refused, report.left_out, report.units) == ([], {"T": 10}, 12)


def test_rebuild_without_the_mark_reports_omissions(
    deleted_log: tuple[bytes, int, int], tmp_path: Path
) -> None:
    log, at, _ = deleted_log

    async def follow(store: MessageStore) -> None:
        await append(store, log)
        await store.close()

    image = without_mark(session(follow, config=SLAVE).image)
    image.export(str(tmp_path))
    with closing(open_directory(f"{tmp_path}{ROOT}")) as opened:
        report = rebuild(opened, f"{tmp_path}/new")
    assert len(report.refused) == 10
    assert report.begun_anew == {"T/0": at}


@pytest.mark.parametrize("marked", [True, False])
def test_an_operator_may_tell_of_a_deletion(
    marked: bool, deleted_log: tuple[bytes, int, int]
) -> None:
    log, at, _ = deleted_log

    async def follow(store: MessageStore) -> None:
        await append(store, log)
        await store.close()

    async def look(store: MessageStore) -> tuple[list[str], list[str], bool]:
        await settle(store)
        state = bodies(store), store.recovery.findings, store.recovery.took_over
        await store.close()
        return state

    image = session(follow, config=SLAVE).image
    if not marked:
        image = without_mark(image)
        _, findings, _ = session(look, image=image).value
        assert any(f"rbTopicDeleted=T:{at}" in finding for finding in findings)
    first = session(look, image=image, config=settings(topics_deleted=(("T", at),)))
    assert first.value[0] == expected(12)
    second_run = session(look, image=first.image, config=settings(topics_deleted=(("T", at),)))
    assert (second_run.value[0], second_run.value[2]) == (expected(12), False)
    assert session(look, image=second_run.image).value[0] == expected(12)


def test_node_with_unqueued_messages_is_not_promoted_silently(
    deleted_log: tuple[bytes, int, int],
) -> None:
    log, at, _ = deleted_log

    async def follow(store: MessageStore) -> dict[str, str]:
        await append(store, log)
        return store.runtime_info()

    info = session(follow, config=SLAVE).value
    node = ClusterMember(name="slave-1", port=10911, broker_id=1)
    status = MemberStatus(member=node, pid=1, info=info, is_routed=True, broker_id=node.broker_id)
    end = NodeEnd("slave-1", len(log), "running", status.unqueued)
    problem = missing_in(end, [NodeEnd("master", len(log), "running")])
    assert f"10 good records stand in no queue (T: 10 from offset {at} on" in problem
    assert f"its queue offsets begin anew at {at}" in problem
    assert missing_in(NodeEnd("slave-1", 5, "running"), []) == ""


def test_a_wrong_bit_drops_no_queue(deleted_log: tuple[bytes, int, int]) -> None:
    """A record that says queue offset 0, and a master that tells of no deletion."""

    async def work(store: MessageStore) -> bytes:
        for number in range(5):
            put(store, body=b"m-%d" % number)
        await settle(store)
        return store.log.read(0, store.max_offset)

    log = bytearray(session(work).value)
    third = 3 * (len(log) // 5)
    log[third + 20 : third + 28] = bytes(8)

    async def follow(store: MessageStore) -> list[str]:
        await append(store, bytes(log))
        await store.removal.learn_deletions({})
        assert store.unqueued() == {}
        return bodies(store)

    assert session(follow, config=SLAVE).value == expected(5, "m")
