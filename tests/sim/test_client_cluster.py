"""The client against whole nodes and nameservers in simulation: routes, kills, reads, upkeep."""

from ipaddress import IPv4Address
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer, Start
from rocketbed.client.errors import ClientError, NotFound, RequestRefused
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Refused, Sent, Unknown
from rocketbed.client.producer import Producer
from rocketbed.client.session import Session
from rocketbed.client.subscriptions import SHARE_S
from rocketbed.remoting.connection import OUTBOX_MAX
from rocketbed.remoting.errors import RemotingError, RequestTimeout
from rocketbed.wire.bodies import MessageQueue, SubscriptionGroupConfig
from rocketbed.wire.command import Encoding
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster


def producer(world: World, **options: Any) -> Producer:
    return Producer(world, nameservers=NAMESERVERS, group="pg", **options)


def consumer(world: World, **options: Any) -> Consumer:
    return Consumer(world, nameservers=NAMESERVERS, group="cg", **options)


def admin(world: World) -> Admin:
    return Admin(world, nameservers=NAMESERVERS)


async def poll_all(reader: Consumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    with trio.fail_after(60):
        while len(bodies) < count:
            bodies += [message.body for message in await reader.poll()]
    return bodies


def test_sent_messages_are_read_and_committed() -> None:
    async def main(world: World) -> None:
        async with admin(world) as upkeep:
            assert await upkeep.create_topic("T", queues=3) == ["a", "b"]
        async with producer(world) as sender:
            outcomes = [await sender.send(Message("T", b"%d" % n)) for n in range(30)]
            links = sender._session.connections.open_links()
            assert {link.encoding for link in links} == {Encoding.MSGPACK}
        assert {type(outcome) for outcome in outcomes} == {Sent}
        assert len({o.queue for o in outcomes if isinstance(o, Sent)}) == 6
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            assert sorted(await poll_all(reader, 30)) == sorted(b"%d" % n for n in range(30))
            await reader.commit()
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            assert set(reader.positions().values()) == {5}
            assert await reader.poll(timeout_s=5) == []

    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(main)


def test_first_message_creates_a_new_topic() -> None:
    async def main(world: World) -> None:
        async with producer(world) as sender, consumer(world) as reader:
            first = await sender.send(Message("New", b"1", tag="A"))
            assert isinstance(first, Sent)
            batch = [Message("New", b"%d" % n) for n in (2, 3)]
            second = await sender.send_batch(batch, queue=first.queue)
            assert isinstance(second, Sent)
            assert len(second.offset_ids) == 2
            await sender.send_oneway(Message("New", b"4", tag="A"), queue=first.queue)
            await trio.sleep(1)
            pulled_page = await reader.pull(first.queue, 0)
            assert [message.body for message in pulled_page.messages] == [b"1", b"2", b"3", b"4"]
            tagged = await reader.pull(first.queue, 0, tags="A")
            assert [message.body for message in tagged.messages] == [b"1", b"4"]
            ids = [message.message_id for message in pulled_page.messages]
            # Only the first was named before there was a connection whose own end is known.
            own = sender._session.connections.local_host
            assert own not in (None, "127.0.0.1")
            assert all(name.startswith(IPv4Address(own).packed.hex().upper()) for name in ids[1:3])
            assert ids[:3] == [first.message_id, *second.message_ids]

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(main)


@pytest.mark.parametrize("seed", range(3))
def test_killed_master_loses_no_acknowledged_message(seed: int) -> None:
    outcomes: list[tuple[bytes, Outcome]] = []
    stopping: list[bool] = []

    async def send(world: World) -> None:
        # One attempt: with more, what is refused is sent until the master is back.
        async with producer(world, retries=0) as sender:
            while not stopping or not isinstance(outcomes[-1][1], Sent):
                body = b"%d" % len(outcomes)
                outcomes.append((body, await sender.send(Message("T", body))))
                await trio.sleep(0.005)

    async def read(world: World) -> list[bytes]:
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            bodies: list[bytes] = []
            while messages := await reader.poll(timeout_s=10):
                bodies += [message.body for message in messages]
            return bodies

    with SimCluster(seed) as cluster:
        cluster.start("a-0", "a-1", sync=True)
        cluster.simulation.run(2)
        program = cluster.program(send)
        for pause_s in (0.3, 0.5):
            cluster.simulation.run(pause_s + 0.01 * seed)
            cluster.simulation.kill("a-0")
            cluster.simulation.run(0.2)
            cluster.start("a-0")
        cluster.simulation.run(2)
        stopping.append(True)
        cluster.simulation.run(60, until=lambda: program.done)
        program.value()
        bodies = cluster.run(read)
    assert any(not isinstance(outcome, Sent) for _, outcome in outcomes)
    for body, outcome in outcomes:
        count = bodies.count(body)
        if isinstance(outcome, Sent):
            assert count == 1 or (count > 1 and outcome.may_be_double)
        elif isinstance(outcome, Refused):
            assert count == 0


def test_slave_serves_reads_while_its_master_is_down() -> None:
    async def send(world: World) -> None:
        async with producer(world) as sender:
            for number in range(8):
                assert isinstance(await sender.send(Message("T", b"%d" % number)), Sent)

    async def read(world: World) -> list[int]:
        async with consumer(world) as reader, producer(world) as sender:
            refused = await sender.send(Message("T", b"x"))
            assert isinstance(refused, Refused)
            assert "no master" in refused.reason
            ids = []
            bodies = []
            for queue in await reader.queues("T"):
                pulled = await reader.pull(queue, 0)
                ids.append(pulled.broker_id)
                bodies += [message.body for message in pulled.messages]
            assert sorted(bodies) == [b"%d" % number for number in range(8)]
            return ids

    with SimCluster() as cluster:
        cluster.start("a-0", "a-1", sync=True)
        cluster.simulation.run(2)
        cluster.run(send)
        cluster.simulation.run(3)
        cluster.simulation.kill("a-0")
        cluster.simulation.run(1)
        assert set(cluster.run(read)) == {1}


def test_consumer_reads_on_through_broker_and_nameserver_deaths() -> None:
    sent: list[bytes] = []
    received: list[bytes] = []

    async def send(world: World) -> None:
        async with producer(world, timeout_s=20, retries=100) as sender:
            for number in range(60):
                body = b"%d" % number
                if isinstance(await sender.send(Message("T", body)), Sent):
                    sent.append(body)
                await trio.sleep(0.05)

    async def read(world: World) -> None:
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            while True:
                received.extend(message.body for message in await reader.poll())

    async def make(world: World) -> None:
        async with admin(world) as upkeep:
            await upkeep.create_topic("T", queues=2)

    with SimCluster(5) as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(make)
        cluster.program(read)
        program = cluster.program(send)
        for victim in ("ns-1", "a-0", "ns-2"):
            cluster.simulation.run(0.7)
            cluster.simulation.kill(victim)
            cluster.simulation.run(0.3)
            if victim.startswith("ns"):
                cluster.start_nameserver(victim)
            else:
                cluster.start(victim)
            cluster.simulation.run(6)
        cluster.simulation.run(60, until=lambda: program.done)
        cluster.simulation.run(60, until=lambda: set(sent) <= set(received))
    assert len(sent) == 60


def test_unregistered_broker_is_read_soon_after_its_return() -> None:
    received: list[bytes] = []

    async def make(world: World) -> None:
        async with admin(world) as upkeep:
            await upkeep.create_topic("T", queues=2)

    async def read(world: World) -> None:
        async with consumer(world) as reader:
            await reader.subscribe("T", start="first")
            assert {queue.broker_name for queue in reader.positions()} == {"a"}
            while True:
                received.extend(message.body for message in await reader.poll())

    async def send(world: World) -> None:
        async with producer(world) as sender:
            for queue in await sender.queues("T"):
                assert isinstance(await sender.send(Message("T", b"."), queue=queue), Sent)

    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(make)
        cluster.simulation.kill("b-0")
        cluster.simulation.run(1)
        cluster.program(read)
        cluster.simulation.run(1)
        cluster.start("b-0")
        cluster.simulation.run(1)
        cluster.run(send)
        cluster.simulation.run(SHARE_S + 2, until=lambda: len(received) == 4)


def test_a_partition_makes_sends_unknown_and_heals() -> None:
    async def main(world: World) -> list[type[Any]]:
        kinds = []
        async with producer(world, timeout_s=1, retries=0) as sender:
            for number in range(14):
                kinds.append(type(await sender.send(Message("T", b"%d" % number))))
                await trio.sleep(0.5)
        return kinds

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        program = cluster.program(main)
        cluster.simulation.run(1.7)
        hosts = cluster.simulation.hosts
        network = cluster.simulation.network
        ends = hosts["program-1"].address, hosts["a-0"].address
        for source, target in (ends, ends[::-1]):
            network.link(source, target).cut = True
        cluster.simulation.run(5)
        for source, target in (ends, ends[::-1]):
            network.link(source, target).cut = False
        cluster.simulation.run(60, until=lambda: program.done)
        kinds = program.value()
    assert kinds[0] is Sent
    assert Unknown in kinds
    assert kinds[-1] is Sent


def test_an_unreachable_nameserver_leaves_time_for_the_others() -> None:
    """Trap 9: connecting to a host without power hangs; the call still has its answer."""

    async def main(world: World) -> float:
        longest = 0.0
        for _ in range(4):
            async with Session(world, f"dark:9876;{NAMESERVERS}") as session:
                began = trio.current_time()
                await session.routes.get("TBW102")
                longest = max(longest, trio.current_time() - began)
        return longest

    with SimCluster(3) as cluster:
        cluster.simulation.host("dark").has_power = False
        cluster.start("a-0")
        cluster.simulation.run(1)
        assert 0.5 < cluster.run(main) < 2.0


def test_sends_wait_for_no_nameserver_with_unmoved_brokers() -> None:
    """All nameservers are silent, which a connection in use does not notice for seconds."""

    async def main(world: World) -> list[type[Outcome]]:
        kinds = []
        async with admin(world) as upkeep:
            await upkeep.create_topic("T")
        async with producer(world, timeout_s=1.0) as sender:
            await sender.send(Message("T", b"first"))
            for name in ("ns-1", "ns-2"):
                cluster.simulation.power_cut(name)
            for _ in range(80):
                await trio.sleep(0.5)
                kinds.append(type(await sender.send(Message("T", b"on"))))
        return kinds

    with SimCluster(5) as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        assert cluster.run(main) == [Sent] * 80


def test_one_way_sends_wait_for_a_stalled_broker() -> None:
    """The program stays alive meanwhile, and what waits has a limit."""

    async def main(world: World) -> tuple[int, int]:
        sent = ticks = ticks_after_100 = 0
        problem = ""

        async def tick() -> None:
            nonlocal ticks
            for _ in range(100):
                await trio.lowlevel.checkpoint()
                ticks += 1

        async with producer(world, timeout_s=2.0) as sender:
            await sender.send(Message("T", b"first"))
            cluster.simulation.pause("a-0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick)
                while not problem:
                    try:
                        await sender.send_oneway(Message("T", bytes(16_000)))
                    except RequestTimeout as exc:
                        problem = str(exc)
                    sent += 1
                    ticks_after_100 = ticks if sent == 100 else ticks_after_100
            assert "this request was not sent" in problem
            cluster.simulation.resume("a-0")
            assert isinstance(await sender.send(Message("T", b"last")), Sent)
        return sent, ticks_after_100

    with SimCluster(7) as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        sent, ticks_after_100 = cluster.run(main)
        assert OUTBOX_MAX / 16_000 < sent < 2 * OUTBOX_MAX / 16_000
        assert ticks_after_100 > 90


@pytest.mark.parametrize("starts_at_time", [False, True])
def test_group_starting_at_the_end_survives_a_kill(starts_at_time: bool) -> None:
    """Positions are saved every 5 s; where a group begins would be another place then."""

    async def begin(world: World) -> None:
        async with producer(world) as sender, consumer(world) as reader:
            await sender.send(Message("T", b"before"))
            await trio.sleep(0.1)
            start: Start = world.clock.wall_ms() if starts_at_time else "last"
            await reader.subscribe("T", start=start)
            await trio.sleep(0.5)

    async def go_on(world: World) -> list[bytes]:
        async with producer(world) as sender:
            await sender.send(Message("T", b"after"))
        async with consumer(world) as reader:
            await reader.subscribe("T")
            return await poll_all(reader, 1)

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(begin)
        cluster.simulation.kill("a-0")
        cluster.start("a-0")
        cluster.simulation.run(1)
        assert cluster.run(go_on) == [b"after"]


# --- administration


def test_topics_are_made_changed_and_deleted() -> None:
    async def main(world: World) -> None:
        async with admin(world) as upkeep, producer(world) as sender:
            await upkeep.create_topic("T", queues=3, attributes="+message.type=NORMAL")
            config = await upkeep.topic_config("T", "a")
            assert (config.write_queue_nums, config.attributes) == (3, {"message.type": "NORMAL"})
            assert isinstance(await sender.send(Message("T", b"x")), Sent)
            assert await upkeep.create_topic("T", queues=5, brokers=["b"]) == ["b"]
            route = await upkeep.route("T")
            assert route is not None
            counts = {item.broker_name: item.write_queue_nums for item in route.queue_datas}
            assert counts == {"a": 3, "b": 5}
            assert {"T", "TBW102", "a", "b"} <= set(await upkeep.topics())
            await upkeep.delete_topic("T")
            assert await upkeep.route("T") is None
            assert "T" not in await upkeep.topics()
            with pytest.raises(RequestRefused, match="17"):
                await upkeep.topic_config("T", "a")
            with pytest.raises(ClientError, match="unknown broker z; registered brokers: a, b"):
                await upkeep.create_topic("T", brokers=["z"])
            with pytest.raises(RequestRefused, match="conflict with system topic"):
                await upkeep.create_topic("TBW102")

    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(main)


def test_deleted_positions_stay_deleted_after_a_kill() -> None:
    """Otherwise the group would skip messages sent after the topic is recreated."""
    positions: list[int | None] = []

    async def delete(world: World) -> None:
        async with admin(world) as upkeep, producer(world) as sender:
            await upkeep.create_topic("T", queues=1)
            await upkeep.create_group(SubscriptionGroupConfig(group_name="G"))
            assert isinstance(await sender.send(Message("T", b"old")), Sent)
            (queue,) = await sender.queues("T")
            await upkeep.offsets.commit("G", queue, 1)
            await trio.sleep(6)  # positions are saved every 5 s
            await upkeep.delete_topic("T")

    async def make_again(world: World) -> None:
        async with admin(world) as upkeep, producer(world) as sender:
            await upkeep.create_topic("T", queues=1)
            assert isinstance(await sender.send(Message("T", b"new")), Sent)
            (queue,) = await sender.queues("T")
            positions.append(await upkeep.offsets.committed("G", queue))

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(delete)
        cluster.simulation.kill("a-0")
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(make_again)
    assert positions == [None]


def test_write_permission_is_removed_and_restored() -> None:
    async def main(world: World) -> None:
        async with admin(world) as upkeep, producer(world) as sender:
            await upkeep.create_topic("T", queues=2)
            assert await upkeep.wipe_write_permission("a") > 0
            outcomes = [await sender.send(Message("T", b"x")) for _ in range(6)]
            assert {o.queue.broker_name for o in outcomes if isinstance(o, Sent)} == {"b"}
            assert await upkeep.add_write_permission("a") > 0
            await trio.sleep(31)
            outcomes = [await sender.send(Message("T", b"x")) for _ in range(6)]
            assert {o.queue.broker_name for o in outcomes if isinstance(o, Sent)} == {"a", "b"}

    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(main)


def test_single_messages_are_found() -> None:
    async def main(world: World) -> None:
        async with admin(world) as upkeep, producer(world) as sender:
            await upkeep.create_topic("T", queues=2)
            sent = [
                await sender.send(Message("T", b"%d" % n, keys=[f"k{n % 2}", "all"]))
                for n in range(6)
            ]
            await trio.sleep(1)
            first = sent[0]
            assert isinstance(first, Sent)
            assert first.offset_id is not None
            by_offset = await upkeep.message(first.offset_id)
            assert (by_offset.body, by_offset.queue) == (b"0", first.queue)
            assert await upkeep.message(first.message_id, "T") == by_offset
            assert [m.body for m in await upkeep.messages_by_key("T", "k1")] == [b"1", b"3", b"5"]
            assert len(await upkeep.messages_by_key("T", "all", count=2)) == 2
            late = await upkeep.messages_by_key("T", "all", begin_ms=by_offset.stored_ms + 10_000)
            assert late == []
            assert await upkeep.messages_by_key("T", "none") == []
            for wrong in ("nonsense", first.message_id, first.offset_id[:-1] + "F"):
                with pytest.raises(NotFound):
                    await upkeep.message(wrong)
            with pytest.raises(NotFound, match="in topic T"):
                await upkeep.message("F" * 32, "T")

    with SimCluster() as cluster:
        cluster.start("a-0", "b-0")
        cluster.simulation.run(1)
        cluster.run(main)


def test_offsets_groups_and_what_brokers_say() -> None:
    async def main(world: World) -> None:
        async with admin(world) as upkeep, producer(world) as sender, consumer(world) as reader:
            await upkeep.create_topic("T", queues=1)
            for number in range(4):
                await sender.send(Message("T", b"%d" % number))
                await trio.sleep(1)
            queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
            third = (await reader.pull(queue, 2)).messages[0]
            assert await upkeep.offsets.min_offset(queue) == 0
            assert await upkeep.offsets.max_offset(queue) == 4
            assert await upkeep.offsets.offset_at(queue, third.stored_ms) == 2
            assert await upkeep.offsets.committed("cg", queue) is None
            await reader.subscribe("T")
            assert len(await upkeep.group_members("cg")) == 1
            assert "cg" in await upkeep.groups()
            await upkeep.offsets.commit("cg", queue, 3)
            assert await upkeep.offsets.committed("cg", queue) == 3
            await upkeep.create_group(SubscriptionGroupConfig(group_name="other"))
            await upkeep.delete_group("cg")
            groups = await upkeep.groups()
            assert "other" in groups
            assert "cg" not in groups
            info = await upkeep.cluster()
            address = info.broker_addr_table["a"].broker_addrs[0]
            runtime = await upkeep.runtime_info(address)
            assert int(runtime["commitLogMaxOffset"]) > 0
            assert (await upkeep.broker_config(address))["brokerRole"] == "ASYNC_MASTER"
            assert "T" in await upkeep.topic_configs(address)
            with pytest.raises(RemotingError):
                await upkeep.runtime_info("a-0:1")

    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        cluster.run(main)


def test_the_same_seed_gives_the_same_run() -> None:
    async def main(world: World) -> None:
        async with producer(world) as sender:
            for number in range(20):
                await sender.send(Message("T", b"%d" % number))

    digests = []
    for _ in range(2):
        with SimCluster(11) as cluster:
            cluster.start("a-0", "a-1")
            cluster.simulation.run(1)
            cluster.run(main)
            digests.append(cluster.simulation.digest())
    assert digests[0] == digests[1]
