"""npm's `ali-ons`: it sends, is in a group with others, and gets over the death of its broker."""

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from tests.support.peer.brokers import Kind, Site
from tests.support.peer.ons_client import WAIT_S, Row, ons_consumer, ons_producer
from tests.support.peer.traffic import read, write

NEW, SHARED, FAILED = "OnsNew", "OnsShared", "OnsFailed"
GROUP = "ons-members"
QUEUES, COUNT = 4, 10


@pytest.mark.ci
async def test_ali_ons_sends_and_gets_failed_messages_again(site: Site) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    async with Admin(nameservers=site.nameserver) as admin:
        for topic in (NEW, FAILED):
            await admin.create_topic(topic, queues=2)
    logs = site.directory
    async with (
        ons_producer(site.nameserver, logs / "producer.log", "ons-senders") as producer,
        ons_consumer(site.nameserver, logs / "new.log", "ons-new", NEW) as reader,
        ons_consumer(site.nameserver, logs / "failed.log", "ons-failed", FAILED, fails=1) as fails,
    ):
        sent = await producer.send(Message(NEW, b"first", tag="red", keys=["k1", "k2"]))
        assert sent.get("status") == "SEND_OK", sent
        large = b"packed by ali-ons " * 1000
        late = trio.current_time()
        for message in (Message(NEW, b"late", delay_level=2), Message(NEW, large)):
            assert (await producer.send(message))["status"] == "SEND_OK"
        await producer.send(Message(FAILED, b"again"))
        await reader.until(lambda rows: bodies_of(rows) == {b"first", b"late", large})
        (arrived_at,) = [row["at"] for row in reader.rows if row["body"] == b"late"]
        assert arrived_at - late >= 5  # what level 2 means
        (first,) = [row for row in reader.rows if row["body"] == b"first"]
        assert (first["tag"], first["keys"]) == ("red", "k1 k2")
        assert len(reader.rows) == 3
        rows = {row.body: row for row in await read(site.nameserver, [NEW])}
        place = rows[b"first"].queue_id, rows[b"first"].queue_offset
        assert place == (sent["queueId"], sent["queueOffset"])
        assert rows.keys() == {b"first", b"late", large}
        await fails.until(lambda rows: len(rows) == 2)
    first_failed, two = fails.rows
    assert [(row["topic"], row["reconsumed"]) for row in (first_failed, two)] == [
        (FAILED, 0),
        (FAILED, 1),
    ]
    assert two["at"] - first_failed["at"] >= 10  # level 3, by the broker


@pytest.mark.parametrize("kind", ["rocketbed", "rocketmq"])
async def test_no_topic_is_made_by_its_first_message(site: Site, kind: Kind) -> None:
    await site.start_nameserver(kind)
    await site.start(site.broker(), kind)
    async with ons_producer(site.nameserver, site.directory / "ons.log", "ons-senders") as producer:
        # It takes "no route" for an error, and does not go on to the route of TBW102 ...
        assert "No topic route info" in (await producer.send(Message(NEW, b"x")))["error"]
        # ... by which others make the topic there.
        await write(site.nameserver, [Message(NEW, b"ours")])
        assert (await producer.send(Message(NEW, b"x")))["status"] == "SEND_OK"


async def test_shared_group_of_ali_ons_and_ours_survives_a_kill(site: Site) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    nameserver, logs = site.nameserver, site.directory
    async with Admin(nameservers=nameserver) as admin:
        await admin.create_topic(SHARED, queues=QUEUES)
    sent: set[bytes] = set()
    async with ons_consumer(nameserver, logs / "one.log", GROUP, SHARED) as first:
        sent.update(await send(site, "alone"))
        await first.until(lambda rows: sent <= bodies_of(rows))
        async with ons_consumer(nameserver, logs / "two.log", GROUP, SHARED) as two:
            for number in count():  # until each has its half
                word = f"two {number}"
                sent.update(await send(site, word))
                await until(lambda: sent <= bodies_of(first.rows, two.rows))
                halves = [sum(of(word, row) for row in member.rows) for member in (first, two)]
                if halves == [QUEUES * COUNT // 2] * 2:
                    break
                assert number < 100
                await trio.sleep(0.2)
            await two.program.end_of_input()  # it commits, and says that it leaves
        ours: list[bytes] = []
        async with Consumer(nameservers=nameserver, group=GROUP, auto_commit_s=0.5) as member:
            await member.subscribe(SHARED, start="first")
            await until(lambda: len(member.positions()) == QUEUES // 2)

            async def collect() -> None:
                while True:
                    ours.extend(message.body for message in await member.poll())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect)
                sent.update(await send(site, "beside"))
                everyone = (first.rows, two.rows)
                await until(lambda: sent <= bodies_of(*everyone) | set(ours))
                assert ours
                await site.kill(broker)
                await site.start(broker, "rocketbed")
                sent.update(await send(site, "after"))
                await until(lambda: sent <= bodies_of(*everyone) | set(ours))
                nursery.cancel_scope.cancel()
    got = Counter(ours) + Counter(row["body"] for row in first.rows + two.rows)
    assert got.keys() == sent
    # A queue that moves begins where it was committed; a kill takes what was not saved (5 s).
    assert got.total() <= 3 * len(got), got


def bodies_of(*rows: list[Row]) -> set[bytes]:
    return {row["body"] for some in rows for row in some}


def of(word: str, row: Row) -> bool:
    return bytes(row["body"]).startswith(f"{word} ".encode())


async def send(site: Site, word: str) -> set[bytes]:
    """Send `count` messages into each queue."""
    bodies = [f"{word} {number}".encode() for number in range(QUEUES * COUNT)]
    await write(site.nameserver, [Message(SHARED, body) for body in bodies])
    return set(bodies)


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while True:
            if is_so():
                return
            await trio.sleep(0.1)
