"""Peers that wish a node no good, on the ports that are open to everybody.

They run beside the conductor, on the machine `harness`, until they are cancelled. Nothing that they
do may cost the node a descriptor of its store, or count as an acknowledgement.
"""

from contextlib import suppress
from itertools import cycle
from typing import Final

import trio

from rocketbed.wire.ha import encode_report
from rocketbed.world.api import Address, World

RETRY_S: Final = 0.2
CLAIMS: Final = (1 << 20, 1 << 40, (1 << 63) - 1, -1)
"""Offsets that were never sent to this peer, or cannot be."""


async def crowd(world: World, addresses: list[Address], count: int) -> None:
    """Hold so many connections to each address, and say nothing on them; those that are closed are
    opened again."""

    async def hold(address: Address) -> None:
        while True:
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                stream = await world.network.connect(*address)
                async with stream:
                    while await stream.receive_some(4096):
                        pass
            await trio.sleep(RETRY_S)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            for _ in range(count):
                nursery.start_soon(hold, address)


async def hostile(world: World, address: Address) -> None:
    """Ask for the log from its beginning, read nothing, and claim to have all of it."""
    for claim in cycle(CLAIMS):
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            stream = await world.network.connect(*address)
            async with stream:
                await stream.send_all(encode_report(0))
                for _ in range(10):
                    await trio.sleep(RETRY_S)
                    await stream.send_all(encode_report(claim))
        await trio.sleep(RETRY_S)
