"""Java's orderly, broadcasting and lite pull consumers, two of each in a group of its kind, over a
kill of the broker; and when they come again they go on where they stopped."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from typing import Any, Final

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.messages import Message
from rocketbed.inspect import open_directory
from tests.support.peer.brokers import Broker, Site
from tests.support.peer.installation import install_client
from tests.support.peer.java_client import JavaClient
from tests.support.peer.traffic import write

TOPIC: Final = "PeerMembers"
QUEUES, COUNT = 4, 30
"""Queues of the topic, and messages of each over the kill."""
WAIT_S: Final = 150.0
Place = tuple[int, int]
"""Queue, offset."""
MEMBERS: Final = {"one": [0, 1], "two": [2, 3]}
"""Name -> the queues of its consumer that is assigned some."""


class Deliveries:
    """Messages that the members of all groups got, in the order of sending and arrival."""

    def __init__(self, site: Site) -> None:
        self.expected: dict[Place, str] = {}
        self.rows: list[dict[str, Any]] = []
        self._site = site

    async def send(self, word: str, count: int) -> set[Place]:
        """Send `count` messages into the queues; each fifth is requested again."""
        messages = [
            Message(TOPIC, f"{word} {number}".encode(), tag=None if number % 5 else "again")
            for number in range(count)
        ]
        written = await write(self._site.nameserver, messages)
        sent = {(one.queue_id, one.queue_offset): one.message.body.decode() for one in written}
        self.expected.update(sent)
        return set(sent)

    async def consume(self, name: str, java: JavaClient) -> None:
        """A member of each group, until `JavaClient.next_line`."""
        await java.ask(
            "consume",
            topic=TOPIC,
            name=name,
            queues=MEMBERS[name],
            each=lambda row: self.rows.append({**row, "member": name}),
        )

    def of(self, kind: str, *members: str) -> list[dict[str, Any]]:
        """Rows of a kind's members, in the order that they were given the messages."""
        rows = [row for row in self.rows if row["kind"] == kind]
        return sorted((r for r in rows if r["member"] in (members or MEMBERS)), key=at)

    def all_have_all(self) -> bool:
        return (
            all(places(self.of(kind)) >= self.expected.keys() for kind in ("lite", "assigned"))
            and places(done(self.of("orderly"))) >= self.expected.keys()
            and all(places(self.of("broadcasting", one)) >= self.expected.keys() for one in MEMBERS)
        )


@pytest.mark.ci
@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
async def test_two_members_of_each_kind_over_kills(site: Site, version: str) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker(settings={"flushConsumerOffsetInterval": "200"})
    await site.start(broker, "rocketbed")
    async with Admin(nameservers=site.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    before, after = Deliveries(site), Deliveries(site)
    installation = install_client(version)
    async with (
        JavaClient(installation, site.nameserver, site.directory / "one") as first,
        JavaClient(installation, site.nameserver, site.directory / "two") as two,
    ):
        javas = {"one": first, "two": two}
        async with consuming(before, javas):
            await until_each_has_half(before)
            sent = await before.send("settled", QUEUES * COUNT)
            await until(before.all_have_all)
        await until(lambda: all_is_saved(before, broker))
        assert_in_order_and_once(before.of("orderly"), sent)
        await site.kill(broker)
        await site.start(broker, "rocketbed")
        async with consuming(after, javas):  # those that have all of `before`
            await until_each_has_half(after)
            sent = await after.send("killed", QUEUES * COUNT)
            await until(lambda: bool(places(after.of("orderly")) & sent))
            await site.kill(broker)
            assert_in_order_and_once(after.of("orderly"), sent)
            await site.start(broker, "rocketbed")
            await after.send("after", QUEUES)
            await until(after.all_have_all)
    for record in (before, after):
        assert {place(row): row["body"] for row in record.rows} == record.expected
        # These have no queue that moves, and get none twice.
        assert len(record.of("assigned")) == len(record.expected)
        for name in MEMBERS:
            assert len(record.of("broadcasting", name)) == len(record.expected)
        # A queue that moves begins where it was committed; a kill takes what was not saved.
        assert len(record.of("lite")) <= 3 * len(record.expected)
        assert_in_order(record.of("orderly"))


@asynccontextmanager
async def consuming(record: Deliveries, javas: dict[str, JavaClient]) -> AsyncIterator[None]:
    """A member of each group in each program; in the end they leave."""
    async with trio.open_nursery() as nursery:
        for name, java in javas.items():
            nursery.start_soon(record.consume, name, java)
        yield
        for java in javas.values():
            await java.next_line()


def all_is_saved(record: Deliveries, broker: Broker) -> bool:
    """The broker's file has the positions of all groups that have them there."""
    table = open_directory(broker.store).config("consumerOffset.json") or {}
    ends = Counter(str(queue) for queue, _ in record.expected)
    return all(
        table["offsetTable"].get(f"{TOPIC}@peer-{kind}") == ends
        for kind in ("orderly", "lite", "assigned")
    )


async def until_each_has_half(record: Deliveries) -> None:
    """Rounds of a message in each queue, until each member of a shared group gets half of one."""
    with trio.fail_after(WAIT_S):
        for number in count():
            sent = await record.send(f"round {number}", QUEUES)
            await until(record.all_have_all)
            parts = [
                places(record.of(kind, name)) & sent
                for kind in ("orderly", "lite")
                for name in MEMBERS
            ]
            if [len(part) for part in parts] == [QUEUES // 2] * len(parts):
                return
            await trio.sleep(0.2)


def assert_in_order(rows: list[dict[str, Any]]) -> None:
    """No message is dealt with for the first time before one that stands before it."""
    for queue in range(QUEUES):
        offsets = [row["queueOffset"] for row in done(rows) if row["queueId"] == queue]
        first = list(dict.fromkeys(offsets))
        assert first == sorted(first), queue


def assert_in_order_and_once(rows: list[dict[str, Any]], settled: set[Place]) -> None:
    """Besides, each that was sent when no queue moved any more is dealt with once, and after one
    that is put back that one comes next. In a queue that moves a Java client of 4.9 may deal with
    one twice: it hands the queue over before it has noted what it just dealt with."""
    assert_in_order(rows)
    rows = [row for row in rows if place(row) in settled]
    assert max(Counter(map(place, done(rows))).values()) == 1
    for queue in range(QUEUES):
        deliveries = [(row["queueOffset"], row["again"]) for row in rows if row["queueId"] == queue]
        for (offset, is_put_back), (following, _) in pairwise(deliveries):
            assert following == offset if is_put_back else following == offset + 1, deliveries


def done(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] != "orderly" or not row["again"]]


def places(rows: Iterable[dict[str, Any]]) -> set[Place]:
    return set(map(place, rows))


def place(row: dict[str, Any]) -> Place:
    return row["queueId"], row["queueOffset"]


def at(row: dict[str, Any]) -> int:
    return int(row["at"])


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while True:
            if is_so():
                return
            await trio.sleep(0.1)
