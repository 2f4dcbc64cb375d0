"""Members that read all queues, each with positions in a file of its own."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.local import LocalPositions
from rocketbed.client.messages import Message, Received
from rocketbed.client.producer import Producer
from rocketbed.world.api import World
from tests.support.sim.client_cluster import NAMESERVERS, SimCluster


def run_cluster(main: Callable[[World], Awaitable[Any]], *names: str) -> None:
    with SimCluster() as cluster:
        cluster.start(*(names or ("a-0",)))
        cluster.simulation.run(1)
        cluster.run(main, seconds=3600)


async def send(world: World, *numbers: int) -> None:
    async with Producer(world, nameservers=NAMESERVERS) as sender:
        for number in numbers:
            (await sender.send(Message("T", b"%d" % number))).raise_for_outcome()


def member(world: World, path: str, **options: Any) -> Consumer:
    return Consumer(world, nameservers=NAMESERVERS, group="g", broadcast=path, **options)


async def read(reader: Consumer, count: int) -> list[int]:
    numbers: list[int] = []
    with trio.fail_after(60):
        while len(numbers) < count:
            numbers += [int(message.body) for message in await reader.poll()]
    return sorted(numbers)


def test_member_reads_all_and_resumes_from_its_file() -> None:
    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=4)
            async with member(world, "places/one.json") as first:
                await first.subscribe("T", start="last")
                await send(world, *range(10))
                async with member(world, "places/two.json", auto_commit_s=60) as two:
                    await two.subscribe("T", start="first")
                    assert len(first.positions()) == len(two.positions()) == 8
                    assert await read(first, 10) == await read(two, 10) == list(range(10))
                    await first.commit()
                    two.finish(*await two.poll(timeout_s=0))  # all of it: the end commits
                    await send(world, *range(10, 20))
                    assert await read(first, 10) == list(range(10, 20))
                for queue in first.positions():  # brokers know nothing of it
                    assert await admin.offsets.committed("g", queue) is None
            async with member(world, "places/one.json") as first:
                await first.subscribe("T", start="last")
                assert await read(first, 10) == list(range(10, 20))
            async with member(world, "places/two.json") as two:
                await two.subscribe("T", start="last")
                assert await read(two, 10) == list(range(10, 20))

    run_cluster(main, "a-0", "b-0")


def test_many_queues_cost_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = 0
    write = LocalPositions._write

    async def counting(self: LocalPositions, data: bytes) -> None:
        nonlocal writes
        writes += 1
        await write(self, data)

    async def main(world: World) -> None:
        nonlocal writes
        monkeypatch.setattr(LocalPositions, "_write", counting)
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=64)
        async with member(world, "/place.json", auto_commit_s=60) as reader:
            await reader.subscribe("T", start="last")
            assert writes < 8
            await send(world, *range(64))
            assert await read(reader, 64) == list(range(64))
            writes = 0
            reader.finish(*await reader.poll(timeout_s=0))
        assert writes == 1
        async with member(world, "/place.json") as reader:
            await reader.subscribe("T", start="first")
            assert set(reader.positions().values()) == {1}

    run_cluster(main)


def test_unwritable_file_is_reported_and_written_later() -> None:
    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=8)
        await send(world, *range(8))
        async with member(world, "/places/one.json") as first:
            await first.subscribe("T", start="first")
            assert await read(first, 8) == list(range(8))
            world.disk.makedirs("/places/one.json.tmp")
            with pytest.raises(ClientError, match="positions cannot be written to /places"):
                await first.commit()
            world.disk.rename("/places/one.json.tmp", "/places/away")
            await first.commit()
            for queue in first.positions():
                assert await first.committed(queue) == 1

    run_cluster(main)


def test_file_belongs_to_one_consumer_and_damage_is_reported() -> None:
    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=1)
        async with member(world, "/place.json") as reader:
            with pytest.raises(ClientError, match="another consumer's"):
                await member(world, "/place.json").__aenter__()
            await reader.subscribe("T", start="last")
        for damage in (b"", b"{", b'{"offsetTable":[]}', b'{"offsetTable":{{"topic":1}:2}}'):
            file = world.disk.open("/place.json")
            file.truncate(0)
            file.write_at(0, damage)
            file.close()
            with pytest.raises(
                ClientError, match=r"place.json cannot be read: .*; remove the file"
            ):
                await member(world, "/place.json").__aenter__()
        world.disk.unlink("/place.json")
        async with member(world, "/place.json") as reader:
            await reader.subscribe("T", start="last")
        with pytest.raises(BadMessage):
            member(world, "/place.json", ordered=True)

    run_cluster(main)


def test_closed_consumer_refuses_and_leaves_its_file() -> None:
    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=1)
        ended: list[str] = []

        async def wait(reader: Consumer) -> None:
            try:
                await anext(reader)
            except ClientError as exc:
                ended.append(str(exc))

        async with trio.open_nursery() as nursery, member(world, "/place.json") as reader:
            await reader.subscribe("T", start="first")
            (queue,) = reader.positions()
            nursery.start_soon(wait, reader)
            await trio.sleep(1)
        assert ended == ["the client is closed"]
        with pytest.raises(ClientError, match="is closed"):
            await reader.poll(timeout_s=0)
        async with member(world, "/place.json") as two:
            await two.subscribe("T", start="first")
            with pytest.raises(ClientError, match="may be another's now"):
                await reader.commit({queue: 5})
            assert await two.committed(queue) is None

    run_cluster(main)


def test_unhandled_message_is_skipped_at_last() -> None:
    async def main(world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            await admin.create_topic("T", queues=1)
        await send(world, *range(5))
        tries: list[bytes] = []

        async with member(world, "/place.json") as reader:

            async def handler(message: Received) -> None:
                tries.append(message.body)
                if message.body == b"2":
                    raise ValueError("never")
                if len(set(tries)) == 5:
                    reader.stop_listening()

            await reader.subscribe("T", start="first")
            await reader.listen(handler, workers=1, max_retries=2)
            (queue,) = reader.positions()
            assert tries == [b"0", b"1", b"2", b"2", b"2", b"3", b"4"]
            assert await reader.committed(queue) == 5

    run_cluster(main)
