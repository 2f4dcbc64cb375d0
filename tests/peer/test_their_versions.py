"""Java's clients of other versions: two of them and one of ours in a group, over a kill; and two
whose queues the broker shares out."""

from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
import trio

from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message
from tests.support.peer.brokers import Site
from tests.support.peer.installation import install_client
from tests.support.peer.java_client import JavaClient

TOPIC, GROUP = "PeerVersions", "peer-versions"
QUEUES, COUNT = 6, 10
"""Queues of the topic, and messages of each in one round."""
SHARED_S = 150.0


@pytest.mark.ci
@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
async def test_two_members_and_ours_over_a_kill(site: Site, version: str) -> None:
    await site.start_nameserver("rocketbed")
    broker = site.broker()
    await site.start(broker, "rocketbed")
    installation = install_client(version)
    got: dict[str, list[bytes]] = {"one": [], "two": [], "ours": []}

    def bodies_got() -> set[bytes]:
        return {body for bodies in got.values() for body in bodies}

    async with (
        JavaClient(installation, site.nameserver, site.directory / "sender") as sender,
        JavaClient(installation, site.nameserver, site.directory / "one") as first,
        JavaClient(installation, site.nameserver, site.directory / "two") as two,
        Consumer(nameservers=site.nameserver, group=GROUP, auto_commit_s=0.5) as ours,
        trio.open_nursery() as nursery,
    ):
        sent: set[bytes] = set()

        async def send(word: str) -> None:
            bodies = [f"{word} {number}".encode() for number in range(QUEUES * COUNT)]
            await sender.send([Message(TOPIC, body) for body in bodies])
            sent.update(bodies)

        async def push(name: str, java: JavaClient) -> None:
            await java.ask(
                "push",
                topic=TOPIC,
                group=GROUP,
                tags="*",
                count=10**6,
                each=lambda row: got[name].append(b64decode(row["body"])),
            )

        async def poll() -> None:
            while True:
                got["ours"].extend(message.body for message in await ours.poll())

        await sender.create(broker.address, [TOPIC], QUEUES)
        nursery.start_soon(push, "one", first)
        nursery.start_soon(push, "two", two)
        for number in count():  # the first member may take a whole round
            await send(f"before {number}")
            await until(lambda: sent <= bodies_got())
            if got["one"] and got["two"]:
                break
            await trio.sleep(0.2)
        await ours.subscribe(TOPIC, start="first")
        nursery.start_soon(poll)
        await until(lambda: len(ours.positions()) == QUEUES // 3)
        for word in ("three", "thirds"):
            await send(word)
            await until(lambda: sent <= bodies_got())
        assert all(got.values())
        await site.kill(broker)
        await site.start(broker, "rocketbed")
        await send("after")
        await until(lambda: sent <= bodies_got())
        nursery.cancel_scope.cancel()
    counts = Counter(body for bodies in got.values() for body in bodies)
    assert counts.keys() == sent
    # What was not committed comes again, of queues that move and when the broker dies.
    assert counts.total() <= 2 * len(counts), counts


@pytest.mark.ci
async def test_broker_shares_queues_out_to_members(site: Site) -> None:
    await site.start_nameserver("rocketbed")
    brokers = [site.broker("broker-a"), site.broker("broker-b")]
    for broker in brokers:
        await site.start(broker, "rocketbed")
    installation = install_client("5.5.0")
    got: dict[str, list[bytes]] = {"one": [], "two": []}
    async with (
        JavaClient(installation, site.nameserver, site.directory / "sender") as sender,
        JavaClient(installation, site.nameserver, site.directory / "one") as first,
        JavaClient(installation, site.nameserver, site.directory / "two") as two,
        trio.open_nursery() as nursery,
    ):

        async def push(name: str, java: JavaClient) -> None:
            await java.ask(
                "push",
                topic=TOPIC,
                group=GROUP,
                tags="*",
                count=10**6,
                shared=True,
                each=lambda row: got[name].append(b64decode(row["body"])),
            )

        for broker in brokers:
            await sender.create(broker.address, [TOPIC], QUEUES)
        sent: set[bytes] = set()
        nursery.start_soon(push, "one", first)
        nursery.start_soon(push, "two", two)
        for number in range(10):
            bodies = [f"round {number} {place}".encode() for place in range(2 * QUEUES)]
            await sender.send([Message(TOPIC, body) for body in bodies])
            sent.update(bodies)
            await until(lambda: sent <= {*got["one"], *got["two"]})
            if all(len(bodies) > 2 * QUEUES for bodies in got.values()):
                break
        nursery.cancel_scope.cancel()
    assert all(got.values())
    assert {*got["one"], *got["two"]} == sent


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(SHARED_S):
        while True:
            if is_so():
                return
            await trio.sleep(0.1)
