"""A master node: ranges of its log are fetched, and its connections are limited."""

from functools import partial
from random import Random
from typing import Final

import pytest
import trio

from rocketbed.replication.fetch import FetchFailed, fetch
from rocketbed.world.api import Stream, World
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage
from tests.support.peers.master import ScriptedMaster

BATCH: Final = 1000
SETTINGS: Final = {"haTransferBatchSize": BATCH}
LIMITS: Final = [
    ({"rbMaxConnections": 20, "rbMaxHaConnections": 2}, 0, (20, 5, 2)),
    ({"rbMaxConnections": 4}, 0, (4, 2, 256)),
    ({}, 256, (54, 13, 24)),
]
"""Settings, descriptors of the process (0: enough), connections to the main, the fast and the
replication port. Of 256 descriptors the store has half and 32 stay free: 24 of 96 are for slaves,
and three quarters of the rest for clients."""


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


@pytest.mark.parametrize(("settings", "descriptors", "limits"), LIMITS, ids=str)
def test_takes_a_limited_number_of_connections(
    settings: dict[str, int], descriptors: int, limits: tuple[int, int, int]
) -> None:
    """The longest idle connection or a new one is closed; a free place can be taken."""
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
