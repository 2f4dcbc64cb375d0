"""A failover group beside the real RocketMQ: its directories boot there, a slave of RocketMQ's
follows each leader, and Java's clients go on over the death of a leader."""

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from rocketbed.client.group_status import GroupStatus
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome, Sent
from rocketbed.client.producer import Producer
from rocketbed.cluster.cluster import LocalCluster
from rocketbed.cluster.plan import BROKER_NAME, CLUSTER_NAME
from rocketbed.inspect import LogEnd, open_directory
from rocketbed.wire.errors import RocketbedError
from tests.support.peer.brokers import SMALL_FILES, Broker, Site
from tests.support.peer.directories import assert_sound
from tests.support.peer.go_sender import go_sender
from tests.support.peer.installation import install_client
from tests.support.peer.java_client import JavaClient
from tests.support.peer.rows import assert_held, by_place
from tests.support.peer.traffic import read, varied, write

TOPICS: Final = ("PeerFailover", "PeerMoved")
FLOW: Final = "PeerFlow"
QUEUES: Final = 4
FILLING: Final = 900
"""Messages of `varied`: more than a segment."""
SLAVE_ID: Final = 9
"""Free in a group of three, whose nodes are registered as 0 and by their numbers."""
SENDERS: Final = [0, *range(100_001, 100_016)]
"""The same for producers of one test, each of which has another interval."""
POLLS: Final = {0: "0-", 1000: "1000-"}
"""How often a producer asks for routes, in ms, 0 for the default; the beginning of its bodies."""
LIMIT_S: Final = 100.0
LOOK_S: Final = 0.05


@asynccontextmanager
async def group(site: Site, groups: int = 1) -> AsyncIterator[LocalCluster]:
    """Three nodes with failover, or several groups of three, whose nameserver is the site's."""
    cluster = LocalCluster.create(
        site.directory / "group",
        slaves=2,
        groups=groups,
        failover=True,
        settings=SMALL_FILES,
        tied=True,
    )
    async with cluster:
        await cluster.start()
        site.nameserver = cluster.nameserver_address
        for broker in cluster.plan.brokers:
            await leader_of(cluster, broker)
            await in_sync(cluster, 3, broker)
        yield cluster


@pytest.mark.ci
@pytest.mark.parametrize("installation", ["5.3.3", "5.5.0"], indirect=True)
async def test_directory_of_the_group_boots_in_the_real_broker(site: Site) -> None:
    async with group(site) as cluster:
        first = await leader_of(cluster)
        async with site.admin() as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, queues=QUEUES)
        written = await write(site.nameserver, varied(TOPICS, FILLING, seed=1))
        await kill(cluster, first)
        second = await leader_of(cluster)
        assert second != first
        await in_sync(cluster, 2)
        written += await write(site.nameserver, varied(TOPICS, 100, seed=2))
        await cluster.start(first)
        await in_sync(cluster, 3)
        written += await write(site.nameserver, varied(TOPICS, 100, seed=3))
        ours = by_place(await read(site.nameserver, TOPICS))
        assert_held(ours, written)
        # Each of them hands over before it ends; the last one could not.
        running = cluster.nodes
        for name in (second, first):
            await all_confirmed(site, cluster, running)
            assert await cluster.stop(name)
            running.remove(name)
            store = cluster.member_directory(name) / "store"
            assert not (store / "abort").exists()
            assert_sound(store)
    # The first leader's, which has followed since, or the second's: one boot takes long enough.
    name = first if site.installation.jars.version == "5.3.3" else second
    await site.start_nameserver("rocketbed")
    broker = site.broker(settings={"brokerClusterName": CLUSTER_NAME})
    shutil.copytree(cluster.member_directory(name) / "store", broker.store)
    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        assert by_place(await java.read(TOPICS)) == ours
        written += await java.send(varied(TOPICS, 40, seed=4))
        assert_held(by_place(await java.read(TOPICS)), written)
    await site.stop(broker)
    assert_sound(broker.store)


@pytest.mark.ci
async def test_real_slave_follows_each_leader(site: Site) -> None:
    async with group(site) as cluster:
        first = await leader_of(cluster)
        async with site.admin() as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, queues=QUEUES)
        written = await write(site.nameserver, varied(TOPICS, FILLING, seed=1))
        slave = site.broker(
            BROKER_NAME,
            SLAVE_ID,
            # The shortest that RocketMQ takes; so often it asks who is its master.
            settings={"brokerClusterName": CLUSTER_NAME, "registerNameServerPeriod": "10000"},
        )
        await site.start(slave, "rocketmq")
        await caught_up(site, slave, cluster, first)

        followers = [name for name in cluster.nodes if name != first]
        for name in followers:
            cluster.pause(name)
        lost = await send_unconfirmed(site)
        confirmed, end = await ends(site, cluster, first)
        assert confirmed < end
        assert await slave_end(site, slave) <= confirmed
        # What came to the others while they were paused dies with them.
        for name in (*followers, first):
            await kill(cluster, name)
        await cluster.start(*followers)
        second = await leader_of(cluster)
        await in_sync(cluster, 2)
        written += await write(site.nameserver, varied(TOPICS, 200, seed=2))
        await caught_up(site, slave, cluster, second)
        await cluster.start(first)
        await in_sync(cluster, 3)
        written += await write(site.nameserver, varied(TOPICS, 200, seed=3))
        await caught_up(site, slave, cluster, await leader_of(cluster))
        rows = by_place(await read(site.nameserver, TOPICS))
        assert_held(rows, written)
        assert not lost & {row.body for row in rows.values()}
        await site.kill(slave)
        assert await cluster.close() == []
    for name in cluster.nodes:
        assert_prefix(slave.store, cluster.member_directory(name) / "store")


async def test_java_clients_continue_after_the_death_of_a_leader(site: Site) -> None:
    rows: list[dict[str, Any]] = []

    def of(kind: str, start: str = "") -> list[dict[str, Any]]:
        return [row for row in rows if row["kind"] == kind and row["body"].startswith(start)]

    def bodies(kind: str) -> set[str]:
        return {row["body"] for row in of(kind)}

    async with group(site) as cluster:
        first = await leader_of(cluster)
        async with site.admin() as admin:
            await admin.create_topic(FLOW, queues=QUEUES)
        async with (
            JavaClient(site.installation, site.nameserver, site.directory / "java") as java,
            trio.open_nursery() as nursery,
        ):
            flow = partial(java.ask, "flow", topic=FLOW, group="flow", polls=list(POLLS))

            def at_another(start: str) -> int:
                """Number of messages that another node than the first leader took, by their ids."""
                dead = f"{cluster.plan.member(first).port:08X}"
                return sum(row["offsetMsgId"][8:16] != dead for row in of("sent", start))

            nursery.start_soon(partial(flow, each=rows.append))
            await until(lambda: all(len(of("sent", start)) > 50 for start in POLLS.values()))
            await until(lambda: len(of("got")) > 50)
            await kill(cluster, first)
            await until(lambda: all(at_another(start) > 50 for start in POLLS.values()))
            await java.next_line()
            await until(lambda: any(row["kind"] == "ended" for row in rows))
            await until(lambda: bodies("sent") <= bodies("got"))
            await java.next_line()
        rows_by_place = by_place(await read(site.nameserver, [FLOW]))
        assert bodies("sent") <= {row.body.decode() for row in rows_by_place.values()}
        for row in of("sent"):
            place = FLOW, row["queueId"], row["queueOffset"]
            assert rows_by_place[place].body.decode() == row["body"]
    for poll_ms, start in POLLS.items():
        gap_s, failed = longest_gap_s(of("sent", start)), len(of("failed", start))
        print(f"routes asked for every {poll_ms or 30_000} ms: {gap_s:.2f} s, {failed} failed")
    twice = len(of("got")) - len(bodies("got"))
    print(f"consumer: {longest_gap_s(of('got')):.2f} s, {twice} of {len(bodies('got'))} twice")


@pytest.mark.parametrize("installation", ["5.3.3", "5.5.0"], indirect=True)
async def test_java_producer_falls_back_to_another_group(site: Site) -> None:
    """It asks for routes every 30 s only, but what one broker does not take it tries elsewhere."""
    rows: list[dict[str, Any]] = []

    def of(kind: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["kind"] == kind]

    def bodies(kind: str) -> set[str]:
        return {row["body"] for row in of(kind)}

    async with group(site, groups=2) as cluster:
        first = await leader_of(cluster, "broker-a")
        async with site.admin() as admin:
            assert await admin.create_topic(FLOW, queues=QUEUES) == ["broker-a", "broker-b"]

        def sent_to(broker: str, *, but: str = "") -> list[dict[str, Any]]:
            """Return the messages acknowledged by all nodes but one; an id tells which."""
            nodes = [one for one in cluster.plan.nodes(broker) if one.name != but]
            ports = {f"{one.port:08X}" for one in nodes}
            return [row for row in of("sent") if row["offsetMsgId"][8:16] in ports]

        async with (
            JavaClient(site.installation, site.nameserver, site.directory / "java") as java,
            trio.open_nursery() as nursery,
        ):
            flow = partial(java.ask, "flow", topic=FLOW, group="flow", polls=[0])
            nursery.start_soon(partial(flow, each=rows.append))
            await until(lambda: len(sent_to("broker-a")) > 50 < len(sent_to("broker-b")))
            await kill(cluster, first)
            await until(lambda: len(sent_to("broker-a", but=first)) > 50)
            await java.next_line()
            await until(lambda: bool(of("ended")))
            await until(lambda: bodies("sent") <= bodies("got"))
            await java.next_line()
        rows_read = await read(site.nameserver, [FLOW])
    places = {(row.offset_id, row.body.decode()) for row in rows_read}
    assert {(row["offsetMsgId"], row["body"]) for row in of("sent")} <= places
    # Between the last acknowledgement of the dead leader and the first one of its successor, of
    # which Java learned when it asked for routes, there were those of the other group.
    moved = sent_to("broker-a", but=first)[0]["at"]
    last = [row for row in sent_to("broker-a") if row["at"] < moved][-1]["at"]
    after = [row for row in sent_to("broker-b") if last < row["at"] < moved]
    assert after
    print(
        f"{site.installation.jars.version}: {longest_gap_s(of('sent')):.3f} s without a send;"
        f" {len(after)} at the other group in {(moved - last) / 1e9:.1f} s until there were routes;"
        f" {len(of('sent'))} acknowledged, {len(of('unsure'))} unsure, {len(of('failed'))} failed",
        *(row["error"] for row in of("failed")),
    )


@pytest.mark.parametrize("version", ["4.9.8", pytest.param("5.5.0", marks=pytest.mark.ci)])
async def test_nothing_that_a_send_of_java_returned_is_lost_when_leaders_hang(
    site: Site, version: str
) -> None:
    """Whatever status it returned: programs look at exceptions. A deposed leader that runs on
    answers sends that wait, and then truncates what it answered."""
    rows: list[dict[str, Any]] = []

    def bodies(*kinds: str) -> set[str]:
        return {row["body"] for row in rows if row["kind"] in kinds}

    async with group(site, groups=2) as cluster:
        async with site.admin() as admin:
            await admin.create_topic(FLOW, queues=QUEUES)
        async with (
            JavaClient(install_client(version), site.nameserver, site.directory / "java") as java,
            trio.open_nursery() as nursery,
        ):
            flow = partial(java.ask, "flow", topic=FLOW, group="flow", polls=SENDERS)
            nursery.start_soon(partial(flow, each=rows.append))
            await hang_leaders(cluster, rows)
            await java.next_line()
            await until(lambda: "" in bodies("ended"))
            await java.next_line()
        stored = {row.body.decode() for row in await read(site.nameserver, [FLOW])}
    assert bodies("sent", "unsure") <= stored
    counts = Counter(row["kind"] for row in rows)
    print(f"{version}: {counts['sent']} sent, {counts['unsure']} unsure, {counts['failed']} failed")


async def test_nothing_that_a_send_of_go_returned_is_lost_when_leaders_hang(site: Site) -> None:
    rows: list[dict[str, Any]] = []
    async with group(site, groups=2) as cluster:
        async with site.admin() as admin:
            await admin.create_topic(FLOW, queues=QUEUES)
        sender = go_sender(site.nameserver, FLOW, site.directory / "go.log")

        async def collect() -> None:
            while not rows or rows[-1]["kind"] != "ended":
                rows.append(await sender.line())

        async with sender, trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            await hang_leaders(cluster, rows)
            await sender.end_of_input()
        stored = {row.body.decode() for row in await read(site.nameserver, [FLOW])}
    assert {row["body"] for row in rows if row["kind"] in {"sent", "unsure"}} <= stored
    counts = Counter(row["kind"] for row in rows)
    print(f"Go: {counts['sent']} sent, {counts['unsure']} unsure, {counts['failed']} failed")


async def hang_leaders(cluster: LocalCluster, rows: list[dict[str, Any]]) -> None:
    """Stop each group's leader twice, until another one leads; then it runs on. `rows`: outcomes of
    sends."""
    for broker in (*cluster.plan.brokers, *cluster.plan.brokers):
        leader, number = await leader_of(cluster, broker), len(rows)
        await until(partial(has_more_than, rows, number + 500))
        cluster.pause(leader)
        await other_leader(cluster, broker, leader)
        cluster.resume(leader)
        await in_sync(cluster, 3, broker)


def has_more_than(rows: list[dict[str, Any]], number: int) -> bool:
    return len(rows) > number


def longest_gap_s(rows: list[dict[str, Any]]) -> float:
    """Longest time without one of them."""
    times = [int(row["at"]) for row in rows]
    return max(after - before for before, after in pairwise(times)) / 1e9


# --- the group


async def group_of(cluster: LocalCluster, broker: str) -> GroupStatus | None:
    """None while its controller does not say."""
    with suppress(RocketbedError):
        return await cluster.group(broker)
    return None


async def leader_of(cluster: LocalCluster, broker: str = BROKER_NAME) -> str:
    """Return the leader's name, once it runs and the nameserver routes to it as the master."""
    with trio.fail_after(LIMIT_S):
        while True:
            group = await group_of(cluster, broker)
            if group is not None and group.leader is not None:
                name = group.names[group.leader]
                async with cluster.admin() as admin:
                    routes = (await admin.cluster()).broker_addr_table.get(broker)
                address = routes.broker_addrs.get(0) if routes else None
                if address == cluster.address(name) and cluster.pid(name) is not None:
                    return name
            await trio.sleep(LOOK_S)


async def other_leader(cluster: LocalCluster, broker: str, former: str) -> None:
    """Wait until another node leads."""
    with trio.fail_after(LIMIT_S):
        leader = former
        while leader == former:
            await trio.sleep(LOOK_S)
            leader = await leader_of(cluster, broker)


async def in_sync(cluster: LocalCluster, count: int, broker: str = BROKER_NAME) -> None:
    """Wait until `count` replicas have everything; a leader takes messages from two on."""
    with trio.fail_after(LIMIT_S):
        while True:
            group = await group_of(cluster, broker)
            if group is not None and len(group.in_sync) >= count:
                return
            await trio.sleep(LOOK_S)


async def kill(cluster: LocalCluster, name: str) -> None:
    cluster.kill(name)
    await cluster.wait_ended(name)


async def ends(site: Site, cluster: LocalCluster, name: str) -> tuple[int, int]:
    """Return the confirmed and the written end of a node's log."""
    async with site.admin() as admin:
        info = await admin.runtime_info(cluster.address(name))
    return int(info["rbConfirmedOffset"]), int(info["commitLogMaxOffset"])


async def all_confirmed(site: Site, cluster: LocalCluster, names: list[str]) -> None:
    """Wait until all these know that everything they have is confirmed, and have the same."""
    with trio.fail_after(LIMIT_S):
        while True:
            pairs = [await ends(site, cluster, name) for name in names]
            if len({end for pair in pairs for end in pair}) == 1:
                return
            await trio.sleep(LOOK_S)


async def slave_end(site: Site, slave: Broker) -> int:
    """On a busy machine a JVM may not answer within a request's time."""
    with trio.fail_after(LIMIT_S):
        while True:
            async with site.admin() as admin:
                with suppress(RocketbedError):
                    return int((await admin.runtime_info(slave.address))["commitLogMaxOffset"])


async def caught_up(site: Site, slave: Broker, cluster: LocalCluster, leader: str) -> None:
    """Wait until the slave has everything confirmed, which is all; it never has more than that."""
    with trio.fail_after(LIMIT_S):
        while True:
            has = await slave_end(site, slave)
            confirmed, end = await ends(site, cluster, leader)
            assert has <= confirmed
            if has == confirmed == end:
                return
            await trio.sleep(LOOK_S)


# --- messages


async def send_unconfirmed(site: Site) -> set[bytes]:
    """Send some messages that the leader takes and no follower confirms; return their bodies."""
    messages = [Message(TOPICS[0], b"unconfirmed %d" % number) for number in range(10)]
    outcomes: list[Outcome] = []

    async def send_one(message: Message) -> None:
        outcomes.append(await producer.send(message))

    async with (
        Producer(nameservers=site.nameserver, retries=0, timeout_s=10) as producer,
        trio.open_nursery() as nursery,
    ):
        for message in messages:
            nursery.start_soon(send_one, message)
    assert not any(isinstance(one, Sent) and one.is_safe for one in outcomes), outcomes
    return {message.body for message in messages}


def assert_prefix(shorter: Path, longer: Path) -> None:
    """The first log's bytes are those that the other one begins with."""
    directories = [open_directory(store) for store in (shorter, longer)]
    try:
        logs = [directory.log for directory in directories]
        ends = [next(item for item in log.scan() if isinstance(item, LogEnd)) for log in logs]
        assert [log.min_offset for log in logs] == [0, 0]
        assert 0 < ends[0].offset <= ends[1].offset
        assert logs[0].read(0, ends[0].offset) == logs[1].read(0, ends[0].offset)
    finally:
        for directory in directories:
            directory.close()


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while True:
            if is_so():
                return
            await trio.sleep(LOOK_S)
