"""Hostile peers on the ports that are open to everybody.

They run beside the conductor, on the machine `harness`, until they are cancelled. They must neither
exhaust the file descriptors that a node needs for its store nor have anything counted as an
acknowledgement.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any, Final

import trio

from rocketbed.chaos.run.load import ClientFailure
from rocketbed.chaos.run.members import CLUSTER, Members
from rocketbed.chaos.run.operator import recorded_group
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import TransferReader, encode_report
from rocketbed.wire.ha_native import (
    Ack,
    Beat,
    Content,
    Data,
    Fenced,
    Hello,
    Reject,
    encode,
)
from rocketbed.world.api import Address, World

RETRY_S: Final = 0.2
CLAIMS: Final = (1 << 20, 1 << 40, (1 << 63) - 1, -1)
"""Offsets beyond anything that was sent, as long as logs are short. The end of the log is claimed
besides."""
PIPES: Final = {"sim": 512 * 1024}
"""Bytes that an unread connection may hold, including what its sender has in hand. A peer may
acknowledge what it was sent, so no offset within this reach is claimed."""
PIPE: Final = 32 << 20
"""The same of a kernel's connection, with all that `tcp_rmem` and `tcp_wmem` let it grow."""
LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
NOBODY: Final = 63
"""Number of a replica that no group has."""
HOLD_S: Final = 0.4
TURN_S: Final = 3.0
"""Time for one forged connection if the node does not answer."""
FAR: Final = 1 << 62
FORGED: Final[tuple[Content | bytes, ...]] = (
    Fenced((1 << 31) - 1),
    Beat(FAR, FAR, False),
    Reject(why="forged", first=FAR),
    b"",
    Data(0, FAR, b"x" * 100),
    Reject(why="forged", first=1),
    b"\xff" * 64,
    Ack(FAR, FAR, 1),
    Reject(why="forged", leader=NOBODY, address="nowhere:1", first=100_000),
    Beat(0, 0, True),
    b"RBHA" + bytes(20),
)
"""Messages that follow a HELLO that is believed. Their count is prime, so that over time each
replica of a group sends each of them. A valid `Ack` is not among them: it is an acknowledgement."""


async def crowd(world: World, addresses: list[Address], count: int) -> None:
    """Hold `count` idle connections to each address, and reopen those that are closed."""

    async def hold(address: Address) -> None:
        while True:
            with suppress(*LOST):
                stream = await world.network.connect(*address)
                async with stream:
                    while await stream.receive_some(4096):
                        pass
            await trio.sleep(RETRY_S)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            for _ in range(count):
                nursery.start_soon(hold, address)


@dataclass(slots=True)
class Overheard:
    """End of the log that a master sends."""

    end: int = 0


async def hostile(world: World, address: Address, pipe: int) -> None:
    """Request the log from its beginning, read only its first offset, and acknowledge what no
    connection of `pipe` bytes can have delivered.

    A second connection reads the whole log, without acknowledging, to know its end.
    """
    log = Overheard()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_overhear, world, address, log)
        for claim in cycle((None, *CLAIMS)):
            with suppress(*LOST):
                stream = await world.network.connect(*address)
                async with stream:
                    await stream.send_all(encode_report(0))
                    begin = int.from_bytes(await stream.receive_some(8), "big")
                    for _ in range(10):
                        await trio.sleep(RETRY_S)
                        claimed = log.end if claim is None else claim
                        was_sent = begin <= claimed <= begin + pipe
                        await stream.send_all(encode_report(0 if was_sent else claimed))
            await trio.sleep(RETRY_S)


async def _overhear(world: World, address: Address, log: Overheard) -> None:
    while True:
        with suppress(*LOST, RemoteProtocolError):
            stream, reader = await world.network.connect(*address), TransferReader()
            async with stream:
                await stream.send_all(encode_report(0))
                while data := await stream.receive_some(1 << 16):
                    for frame in reader.feed(data):
                        log.end = frame.offset + len(frame.data)
        await trio.sleep(RETRY_S)


async def forge(members: Members, group: str) -> None:
    """Impersonate each replica to the leader of a group with failover, using only what the
    controller publishes, and send what no follower sends; also as an unknown replica, and with a
    truncated HELLO."""
    for turn in count():
        with suppress(*LOST, *ClientFailure), trio.move_on_after(TURN_S):
            entry = (await recorded_group(members, group) or {}).get("entry", {})
            if entry.get("leader") is not None:
                await _say(members, group, entry, turn)
        await trio.sleep(RETRY_S)


async def _say(members: Members, group: str, entry: dict[str, Any], turn: int) -> None:
    numbers = sorted(entry["replicas"], key=int)
    number = numbers[turn % len(numbers)]
    epoch, segment = entry["epoch"], members.shape.segment
    uuid, life = (entry["replicas"][number][key] for key in ("uuid", "incarnation"))
    hello = encode(epoch, _hello(group, int(number), uuid, life, segment))
    forged = FORGED[turn % len(FORGED)]
    payloads = [hello + (forged if isinstance(forged, bytes) else encode(epoch, forged))]
    if not forged:  # the case of a HELLO and nothing else
        payloads += [
            encode(epoch, _hello(group, NOBODY, uuid, life, segment)),
            hello[: len(hello) // 2],
        ]
    host, port = members.backend.address(members.shape.group_nodes()[group][entry["leader"] - 1])
    for data in payloads:
        stream = await members.backend.world.network.connect(host, port + 1)
        async with stream:
            await stream.send_all(data)
            await trio.sleep(HOLD_S)


def _hello(group: str, replica: int, uuid: str, incarnation: int, segment: int) -> Hello:
    """HELLO of a replica whose log is empty."""
    return Hello(
        cluster=CLUSTER,
        group=group,
        replica=replica,
        uuid=uuid,
        incarnation=incarnation,
        promised=0,
        history=(),
        end=0,
        first=0,
        durable=0,
        segment=segment,
    )
