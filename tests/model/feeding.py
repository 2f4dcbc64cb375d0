"""A master asked by slaves by hand: every first report, and whom it does not serve."""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.stream import WINDOW
from rocketbed.replication.fetch import FetchFailed, fetch
from rocketbed.wire.bodies import HaRuntimeInfo
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.ha import Transfer, TransferReader, encode_report
from rocketbed.world.api import Stream, World
from tests.model.master import HandMaster
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage

BATCH: Final = 1000
HOUSEKEEPING_S: Final = 3.0
MASTER: Final = {"haTransferBatchSize": BATCH, "haHousekeepingInterval": 3000}
LIMITS: Final[tuple[tuple[dict[str, int], int, tuple[int, int, int]], ...]] = (
    ({"rbMaxConnections": 20, "rbMaxHaConnections": 2}, 0, (20, 5, 2)),
    ({"rbMaxConnections": 4}, 0, (4, 2, 256)),
    ({}, 256, (54, 13, 24)),
)
"""Settings, descriptors that the process may have (0: more than enough), connections that the main
port takes, the fast one and the replication port. Of 256 descriptors the store has half and 32 are
kept free: 24 of 96 are slaves', and three quarters of the rest clients'."""


@dataclass(slots=True)
class Heard:
    """What a slave by hand was sent."""

    frames: list[Transfer] = field(default_factory=list)
    closed_s: float = -1.0
    """When the master closed the connection, seconds after the first report; -1 if it did not."""

    @property
    def data(self) -> bytes:
        return b"".join(frame.data for frame in self.frames)

    def check(self, log: bytes, low: int, start: int) -> None:
        """The log from `start` to its end, in frames that follow each other within files, then
        heartbeats that say the end."""
        end, at = low + len(log), start
        assert self.closed_s < 0, f"served: from {start}: closed after {self.closed_s} s"
        for frame in self.frames:
            assert frame.offset == at, f"frames: from {start}: {frame.offset} for {at}"
            assert len(frame.data) <= BATCH, f"frames: {len(frame.data)} bytes at {at}"
            last = at + max(len(frame.data) - 1, 0)
            assert at // SEGMENT == last // SEGMENT or not frame.data, f"frames: two files: {at}"
            assert bool(frame.data) == (at < end), f"frames: a heartbeat at {at} of {end}"
            at += len(frame.data)
        assert at == end, f"frames: from {start}: to {at}, the log ends at {end}"
        assert self.data == log[start - low :], f"frames: from {start}: other bytes"
        assert not self.frames[-1].data, f"frames: from {start}: no heartbeat"


def run_feeding(seed: int) -> str:
    digest = ""
    for fresh in ("first", "last_file"):
        with Stage(f"{seed}/{fresh}") as stage:
            _reports(stage, fresh, Random(f"feeding/{seed}"))
            digest += stage.simulation.digest()
    with Stage(seed) as stage:
        _confirms(stage)
        digest += stage.simulation.digest()
    with Stage(seed) as stage:
        _claims(stage, Random(f"feeding/{seed}/claims"))
        digest += stage.simulation.digest()
    for settings, descriptors, limits in LIMITS:
        with Stage(seed) as stage:
            stage.node("master", settings, descriptors=descriptors)
            for port, limit in zip((PORT, PORT - 2, HA_PORT), limits, strict=True):
                stage.peer(partial(_fill_port, port=port, limit=limit))
            digest += stage.simulation.digest()
    return digest + _fetches_in_vain(seed)


def _reports(stage: Stage, fresh: str, random: Random) -> None:
    """Of an empty log, of one from 0 on, and of one whose first file has expired."""
    node = stage.node("master", {**MASTER, "rbClassicFresh": fresh})
    _serves(stage, 0, b"", 0, 0)
    _refuses(stage, encode_report(1))
    stage.fill("master", 1, random)
    low, log = stage.log("master")
    _serves(stage, 0, log, 0, 0)
    while len(log) < 2 * SEGMENT:
        stage.fill("master", 40, random)
        low, log = stage.log("master")
    end = len(log)
    last_file = end - end % SEGMENT
    _serves(stage, 0, log, 0, 0 if fresh == "first" else last_file)
    for start in (1, SEGMENT - 1, SEGMENT, random.randrange(2, end), end - 1, end):
        _serves(stage, 0, log, start, start)
    for first in (b"RBHA0000", b"\xff" * 8, encode_report(end + 1), encode_report(1 << 50)):
        _refuses(stage, first)
    silent = stage.peer(lambda world: _hear(world, b"", HOUSEKEEPING_S + 1))
    late = HOUSEKEEPING_S <= silent.closed_s < HOUSEKEEPING_S + 0.5
    assert late, f"refused: one that says nothing, after {silent.closed_s} s"
    _acknowledges(stage, end)
    for start, stop in ((1, end), (SEGMENT, SEGMENT + 3 * BATCH), (1, SEGMENT + 1)):
        pieces = stage.peer(partial(_fetched, start=start, end=stop))
        assert pieces == log[start:stop], f"fetched: other bytes from {start} to {stop}"
    stage.simulation.process("master").call(node.store.log.segments.remove, 0)
    low, log = stage.log("master")
    assert low == SEGMENT, f"load: the log begins at {low}"
    _serves(stage, low, log, 0, low if fresh == "first" else last_file)
    _serves(stage, low, log, low, low)
    _refuses(stage, encode_report(low - 1))


def _serves(stage: Stage, low: int, log: bytes, reported: int, start: int) -> None:
    heard: Heard = stage.peer(lambda world: _hear(world, encode_report(reported), 1.6))
    heard.check(log, low, start)


def _refuses(stage: Stage, first: bytes) -> None:
    """At once, and without a byte of the log."""
    heard: Heard = stage.peer(lambda world: _hear(world, first, 1.6))
    assert 0 <= heard.closed_s < 0.5, f"refused: {first!r} after {heard.closed_s} s"
    assert not heard.frames, f"refused: {first!r} was sent something first"


async def _hear(world: World, first: bytes, seconds: float) -> Heard:
    heard, reader, began = Heard(), TransferReader(), trio.current_time()
    stream = await world.network.connect("master", HA_PORT)
    with trio.move_on_after(seconds):
        try:
            if first:
                await stream.send_all(first)
            while data := await stream.receive_some(65536):
                heard.frames += reader.feed(data)
        except trio.BrokenResourceError:
            pass
        heard.closed_s = trio.current_time() - began
    await trio.aclose_forcefully(stream)
    return heard


def _acknowledges(stage: Stage, end: int) -> None:
    """The first report only asks; later ones count, whatever they are, up to what was sent."""
    master = stage.nodes["master"].replication.master
    told: list[int] = []

    async def main(world: World) -> bool:
        stream = await world.network.connect("master", HA_PORT)
        for report in (end - 10, end - 5, end, end - 7):
            await stream.send_all(encode_report(report))
            await trio.sleep(0.3)
            told.extend(link.acknowledged for link in master.slaves)
        await stream.send_all(encode_report(end + 1))
        return await _is_closed(stream)

    was_closed = stage.peer(main)
    assert told == [0, end - 5, end, end - 7], f"acknowledged: {told}, the log ends at {end}"
    assert was_closed, "refused: one that acknowledges what is not there is served"
    assert not master.slaves, "refused: its connection counts"


def _claims(stage: Stage, random: Random) -> None:
    """Who reads nothing, and says that it has all of a log that no connection holds."""
    node = stage.node("master", MASTER)
    while node.store.max_offset < 3 * WINDOW:
        stage.fill("master", 100, random)
    end = node.store.max_offset

    async def main(world: World) -> bool:
        stream = await world.network.connect("master", HA_PORT)
        await stream.send_all(encode_report(0))
        await trio.sleep(0.3)
        await stream.send_all(encode_report(end))
        return await _is_closed(stream)

    assert stage.peer(main), "refused: one that acknowledges what it was not sent is served"
    refused = [str(one["reason"]) for one in stage.told("master", "replication.slave_refused")]
    right = len(refused) == 1 and f"it acknowledges {end}, but only what lies" in refused[0]
    assert right, f"told: {refused}"


def _confirms(stage: Stage) -> None:
    """A send waits for the second copy, and a node without one is not ready."""
    stage.node("master", {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 1000})
    node = stage.nodes["master"]
    stage.ready("master", ResponseCode.SERVICE_NOT_AVAILABLE, "1 of 2 copies")

    async def creates(peer: Any) -> None:
        await peer.create()
        await peer.send(ResponseCode.FLUSH_SLAVE_TIMEOUT)

    async def sends(peer: Any) -> None:
        began = trio.current_time()
        await peer.send()
        waited = trio.current_time() - began
        assert 0.3 <= waited < 0.9, f"confirmed: after {waited} s, the second copy takes 0.3"
        answer = await peer.ask(RequestCode.GET_BROKER_HA_STATUS, {}, 0)
        info = HaRuntimeInfo.decode(answer.body)
        end = node.store.max_offset
        acks = [one.slave_ack_offset for one in info.ha_connection_info]
        told = (info.master, info.master_commit_log_max_offset, info.in_sync_slave_nums, acks)
        assert told == (True, end, 1, [end]), f"told: {told}, the log ends at {end}"

    async def follows(world: World) -> None:
        stream, reader = await world.network.connect("master", HA_PORT), TransferReader()
        at = 0
        await stream.send_all(encode_report(0))
        while data := await stream.receive_some(65536):
            at += sum(len(frame.data) for frame in reader.feed(data))
            for report in (max(at - 1, 0), at):  # all but a byte is no second copy
                await trio.sleep(0.15)
                await stream.send_all(encode_report(report))

    stage.ask("master", creates)
    stage.simulation.start("slave", follows)
    stage.simulation.run(2)
    stage.ready("master", ResponseCode.SUCCESS, "")
    stage.ask("master", sends)
    stage.simulation.kill("slave")
    stage.simulation.run(1)
    stage.ready("master", ResponseCode.SERVICE_NOT_AVAILABLE, "1 of 2 copies")


async def _fetched(world: World, *, start: int, end: int) -> bytes:
    """A range, as a log that is mended asks for it."""
    pieces: list[bytes] = []
    try:
        await fetch(world, ("master", HA_PORT), start, end, lambda _, piece: pieces.append(piece))
    except FetchFailed as exc:
        return str(exc).encode()
    return b"".join(pieces)


def _fetches_in_vain(seed: int) -> str:
    """From one that closes the connection, that has nothing there, whose log begins later."""
    with Stage(seed) as stage:
        master = HandMaster(bytes(2 * BATCH), low=SEGMENT)
        master.start(stage)
        for serves, start, says in (
            (False, SEGMENT, "closed"),
            (True, master.end, "has nothing behind"),
            (True, SEGMENT - 1, "silent for 20 s"),
        ):
            master.serves = serves
            told = stage.peer(partial(_fetched, start=start, end=master.end + 1))
            assert says in told.decode(), f"fetched: {told!r} for {says!r}"
        return stage.simulation.digest()


async def _fill_port(world: World, port: int, limit: int) -> None:
    """As many as it takes, one more, and one in the place of one that left."""
    streams = [await world.network.connect("master", port) for _ in range(limit)]
    await trio.sleep(0.2)
    shut = [number for number, one in enumerate(streams) if await _is_closed(one, 0.001)]
    assert not shut, f"limit: {port}: numbers {shut} of {limit} were closed"
    streams.append(await world.network.connect("master", port))
    await trio.sleep(0.2)
    shut = [number for number, one in enumerate(streams) if await _is_closed(one, 0.001)]
    # The last to come, or the one that was silent for longest.
    assert shut in ([limit], [0]), f"limit: {port}: numbers {shut} of {limit + 1} were closed"
    await trio.aclose_forcefully(streams[1])
    await trio.sleep(0.2)
    streams.append(await world.network.connect("master", port))
    assert not await _is_closed(streams[-1]), f"limit: {port}: none in the place of another"
    for stream in streams:
        await trio.aclose_forcefully(stream)
    await trio.sleep(0.2)


async def _is_closed(stream: Stream, seconds: float = 0.2) -> bool:
    with trio.move_on_after(seconds):
        try:
            while await stream.receive_some(4096):
                pass
        except trio.BrokenResourceError:
            pass
        return True
    return False
