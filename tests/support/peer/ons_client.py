"""npm's `ali-ons` in processes of its own: `node/peer.js`."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from rocketbed.client.messages import Message
from tests.support.peer.line_process import LineProcess
from tests.support.peer.npm import npm_modules

VERSION: Final = "3.12.0"
PROGRAM: Final = Path(__file__).parent / "node" / "peer.js"
WAIT_S: Final = 120.0
"""The first retry comes after 10 s, and a lost broker is found again after up to 30 s."""

Row = dict[str, Any]


class OnsProducer:
    """Sends one message after the other."""

    def __init__(self, program: LineProcess) -> None:
        self._program = program

    async def send(self, message: Message) -> Row:
        """Send a message; return the client's row: `status`, and its place or `error`."""
        await self._program.say(
            {
                "topic": message.topic,
                "tag": message.tag or "",
                "keys": list(message.keys),
                "delay": message.delay_level,
                "body": base64.b64encode(message.body).decode(),
            }
        )
        with trio.fail_after(WAIT_S):
            return await self._program.line()


class OnsConsumer:
    """Messages that a member of a group has received so far."""

    def __init__(self, program: LineProcess) -> None:
        self.program = program
        self.rows: list[Row] = []
        """`body` (bytes), `reconsumed`, `topic`, `tag`, `keys`, `at` (seconds), as they came."""
        self._arrived = trio.Event()

    async def run(self) -> None:
        """Collect."""
        while True:
            row = await self.program.line()
            body = base64.b64decode(row["body"])
            self.rows.append(row | {"body": body, "at": trio.current_time()})
            self._arrived.set()
            self._arrived = trio.Event()

    async def until(self, enough: Callable[[list[Row]], bool]) -> None:
        """Wait until that is so of what came."""
        with trio.fail_after(WAIT_S):
            while not enough(self.rows):
                await self._arrived.wait()


@asynccontextmanager
async def _program(log: Path, *arguments: str) -> AsyncIterator[LineProcess]:
    modules = npm_modules("ali-ons", VERSION)
    command = ["env", f"NODE_PATH={modules}", "node", str(PROGRAM), *arguments]
    async with LineProcess(command, log) as program:
        with trio.fail_after(WAIT_S):
            assert await program.line() == {"ready": True}
        yield program


@asynccontextmanager
async def ons_producer(nameserver: str, log: Path, group: str) -> AsyncIterator[OnsProducer]:
    """A producer."""
    async with _program(log, nameserver, "produce", group) as program:
        yield OnsProducer(program)


@asynccontextmanager
async def ons_consumer(
    nameserver: str, log: Path, group: str, topic: str, *, fails: int = 0
) -> AsyncIterator[OnsConsumer]:
    """A member of a group; its function throws the first `fails` times that it is given a
    message."""
    async with (
        _program(log, nameserver, "consume", group, topic, str(fails)) as program,
        trio.open_nursery() as nursery,
    ):
        consumer = OnsConsumer(program)
        nursery.start_soon(consumer.run)
        yield consumer
        nursery.cancel_scope.cancel()
