"""A master node asked by scripted slaves: what it sends, and how many connections it takes."""

from functools import partial
from random import Random
from typing import Any, Final

import pytest
import trio

from rocketbed.replication.fetch import FetchFailed, fetch
from rocketbed.wire.bodies import HaRuntimeInfo
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.ha import Transfer, TransferReader, encode_report
from rocketbed.world.api import Stream, World
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage
from tests.support.peers.master import ScriptedMaster

BATCH: Final = 1000
SETTINGS: Final = {"haTransferBatchSize": BATCH, "haHousekeepingInterval": 3000}
LIMITS: Final = [
    ({"rbMaxConnections": 20, "rbMaxHaConnections": 2}, 0, (20, 5, 2)),
    ({"rbMaxConnections": 4}, 0, (4, 2, 256)),
    ({}, 256, (54, 13, 24)),
]
"""Settings, descriptors of the process (0: enough), connections to the main, the fast and the
replication port. Of 256 descriptors the store has half and 32 stay free: 24 of 96 are for slaves,
and three quarters of the rest for clients."""


async def receive(world: World, first: bytes, seconds: float) -> tuple[list[Transfer], float]:
    """Send a first report; return the frames, and when the master closed the connection (-1)."""
    frames: list[Transfer] = []
    reader, began_s, closed_s = TransferReader(), trio.current_time(), -1.0
    stream = await world.network.connect("master", HA_PORT)
    with trio.move_on_after(seconds):
        try:
            if first:
                await stream.send_all(first)
            while data := await stream.receive_some(65536):
                frames += reader.feed(data)
        except trio.BrokenResourceError:
            pass
        closed_s = trio.current_time() - began_s
    await trio.aclose_forcefully(stream)
    return frames, closed_s


def check_frames(stage: Stage, report: int, start: int) -> None:
    """Check that a slave is sent the log from `start` within files, and heartbeats at its end."""
    low, log = stage.log("master")
    frames, closed_s = stage.peer(lambda world: receive(world, encode_report(report), 1.6))
    at, end = start, low + len(log)
    assert closed_s < 0
    for frame in frames:
        assert frame.offset == at
        assert len(frame.data) <= BATCH
        assert not frame.data or at // SEGMENT == (at + len(frame.data) - 1) // SEGMENT
        assert bool(frame.data) == (at < end)
        at += len(frame.data)
    assert b"".join(frame.data for frame in frames) == log[start - low :]
    assert not frames[-1].data


def check_refused(stage: Stage, first: bytes) -> None:
    frames, closed_s = stage.peer(lambda world: receive(world, first, 1.6))
    assert 0 <= closed_s < 0.5
    assert not frames


@pytest.mark.parametrize("fresh", ["first", "last_file"])
def test_sends_the_log_from_the_first_report(fresh: str) -> None:
    random = Random(fresh)
    with Stage(fresh) as stage:
        node = stage.node("master", {**SETTINGS, "rbClassicFresh": fresh})
        check_frames(stage, 0, 0)
        check_refused(stage, encode_report(1))
        while node.store.max_offset < 2 * SEGMENT:
            stage.fill("master", 40, random)
        end = node.store.max_offset
        last_file = end - end % SEGMENT
        check_frames(stage, 0, 0 if fresh == "first" else last_file)
        for start in (1, SEGMENT - 1, SEGMENT, end - 1, end):
            check_frames(stage, start, start)
        for first in (b"RBHA0000", b"\xff" * 8, encode_report(end + 1), encode_report(1 << 50)):
            check_refused(stage, first)
        _, closed_s = stage.peer(lambda world: receive(world, b"", 4))
        assert 3 <= closed_s < 3.5, "a slave that says nothing is closed after its time"
        stage.simulation.process("master").call(node.store.log.segments.remove, 0)
        check_frames(stage, 0, SEGMENT if fresh == "first" else last_file)
        check_frames(stage, SEGMENT, SEGMENT)
        check_refused(stage, encode_report(SEGMENT - 1))


async def fetched(world: World, start: int, end: int) -> bytes:
    """Fetch a range as a log that is repaired does; return the reason if that fails."""
    pieces: list[bytes] = []
    try:
        await fetch(world, ("master", HA_PORT), start, end, lambda _, piece: pieces.append(piece))
    except FetchFailed as exc:
        return str(exc).encode()
    return b"".join(pieces)


def test_a_range_of_the_log_is_fetched() -> None:
    with Stage("range") as stage:
        node = stage.node("master", SETTINGS)
        while node.store.max_offset < 2 * SEGMENT:
            stage.fill("master", 40, Random(1))
        _, log = stage.log("master")
        for start, end in ((1, len(log)), (SEGMENT, SEGMENT + 3 * BATCH), (1, SEGMENT + 1)):
            assert stage.peer(partial(fetched, start=start, end=end)) == log[start:end]


@pytest.mark.parametrize(
    ("serves", "start", "reason"),
    [
        (False, SEGMENT, "closed"),
        (True, SEGMENT + 2 * BATCH, "has nothing behind"),
        (True, SEGMENT - 1, "silent for 20 s"),
    ],
)
def test_a_fetch_fails_with_the_reason(serves: bool, start: int, reason: str) -> None:
    with Stage("fetch fails") as stage:
        master = ScriptedMaster(bytes(2 * BATCH), low=SEGMENT)
        master.serves = serves
        master.start(stage)
        result = stage.peer(partial(fetched, start=start, end=master.end + 1))
        assert reason in result.decode()


def test_counts_later_reports_as_acknowledgements() -> None:
    with Stage("acks") as stage:
        node = stage.node("master", SETTINGS)
        stage.fill("master", 20, Random(1))
        master, end = node.replication.master, node.store.max_offset
        acknowledged: list[int] = []

        async def main(world: World) -> bool:
            stream = await world.network.connect("master", HA_PORT)
            for report in (end - 10, end - 5, end, end - 7):
                await stream.send_all(encode_report(report))
                await trio.sleep(0.3)
                acknowledged.extend(link.acknowledged for link in master.slaves)
            await stream.send_all(encode_report(end + 1))
            return await is_closed(stream)

        assert stage.peer(main), "a report beyond the log"
        assert acknowledged == [0, end - 5, end, end - 7]
        assert not master.slaves


def test_a_send_waits_for_the_second_copy() -> None:
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 1000}
    with Stage("copies") as stage:
        node = stage.node("master", settings)
        stage.ready("master", ResponseCode.SERVICE_NOT_AVAILABLE, "1 of 2 copies")

        async def send_alone(peer: Any) -> None:
            await peer.create()
            await peer.send(ResponseCode.FLUSH_SLAVE_TIMEOUT)

        async def send(peer: Any) -> None:
            began_s = trio.current_time()
            await peer.send()
            assert 0.3 <= trio.current_time() - began_s < 0.9
            answer = await peer.ask(RequestCode.GET_BROKER_HA_STATUS, {}, 0)
            info = HaRuntimeInfo.decode(answer.body)
            end = node.store.max_offset
            acks = [link.slave_ack_offset for link in info.ha_connection_info]
            actual = (info.master, info.master_commit_log_max_offset, info.in_sync_slave_nums, acks)
            assert actual == (True, end, 1, [end])

        async def follow(world: World) -> None:
            stream, reader = await world.network.connect("master", HA_PORT), TransferReader()
            at = 0
            await stream.send_all(encode_report(0))
            while data := await stream.receive_some(65536):
                at += sum(len(frame.data) for frame in reader.feed(data))
                for report in (max(at - 1, 0), at):  # all but a byte is no second copy
                    await trio.sleep(0.15)
                    await stream.send_all(encode_report(report))

        stage.ask("master", send_alone)
        stage.simulation.start("slave", follow)
        stage.simulation.run(2)
        stage.ready("master", ResponseCode.SUCCESS, "")
        stage.ask("master", send)
        stage.simulation.kill("slave")
        stage.simulation.run(1)
        stage.ready("master", ResponseCode.SERVICE_NOT_AVAILABLE, "1 of 2 copies")


@pytest.mark.parametrize(("settings", "descriptors", "limits"), LIMITS, ids=str)
def test_takes_a_limited_number_of_connections(
    settings: dict[str, int], descriptors: int, limits: tuple[int, int, int]
) -> None:
    """One beyond the limit is closed, itself or the longest idle one; a free place is taken."""
    with Stage("limits") as stage:
        stage.node("master", settings, descriptors=descriptors)
        for port, limit in zip((PORT, PORT - 2, HA_PORT), limits, strict=True):

            async def fill(world: World, port: int = port, limit: int = limit) -> None:
                streams = [await world.network.connect("master", port) for _ in range(limit)]
                await trio.sleep(0.2)
                assert await closed(streams) == []
                streams.append(await world.network.connect("master", port))
                await trio.sleep(0.2)
                assert await closed(streams) in ([limit], [0])
                await trio.aclose_forcefully(streams[1])
                await trio.sleep(0.2)
                streams.append(await world.network.connect("master", port))
                assert not await is_closed(streams[-1])
                for stream in streams:
                    await trio.aclose_forcefully(stream)
                await trio.sleep(0.2)

            stage.peer(fill)


async def closed(streams: list[Stream]) -> list[int]:
    return [place for place, stream in enumerate(streams) if await is_closed(stream, 0.001)]


async def is_closed(stream: Stream, seconds: float = 0.2) -> bool:
    with trio.move_on_after(seconds):
        try:
            while await stream.receive_some(4096):
                pass
        except trio.BrokenResourceError:
            pass
        return True
    return False
