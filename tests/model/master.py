"""A master by hand: it serves what it is told to, and hears what a slave says."""

from typing import Final

import trio

from rocketbed.node.node import Node
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.ha import ReportReader, encode_transfer
from rocketbed.world.api import Stream, World
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage, ends_of

PIECE: Final = 3000
"""Bytes of a frame: no record's length, so that records come in pieces."""
LOOK_S: Final = 0.05


def a_record_end(log: bytes, above: int) -> int:
    """The first end of a record above an offset, of a log from 0 on."""
    return next((end for end in ends_of(log) if end > above), len(log))


class HandMaster:
    """On a host of that name. Its log may grow, and be another one from now on."""

    def __init__(
        self, log: bytes, *, low: int = 0, gives_first: bool = True, port: int = PORT
    ) -> None:
        self.log = log
        self.low = low
        self.bodies: dict[int, bytes] = {}
        """Code -> body of its answer; others are refused."""
        self.bounds: tuple[int, int] | None = None
        """What it says of its log; None: what is true."""
        self.asked: list[int] = []
        self.reports: list[list[int]] = []
        """What was reported, by connection."""
        self.began: list[float] = []
        """When somebody dialled."""
        self.serves = True
        self.is_silent = False
        """Whether it answers no report."""
        self.piece = PIECE
        self.pause_s = 0.001
        """Behind each piece that it sends."""
        self.dropped_s = 0.0
        self.node: Node | None = None
        """The slave, whose reports are compared with what it has."""
        self.wrong: list[str] = []
        self.gives_first = gives_first
        self._port = port
        self._scopes: list[trio.CancelScope] = []
        self._stage: Stage | None = None

    @property
    def end(self) -> int:
        return self.low + len(self.log)

    def start(self, stage: Stage) -> None:
        self._stage = stage
        stage.simulation.start("master", self._main)
        stage.simulation.run(0.1)

    def grow(self, data: bytes) -> None:
        self.log += data

    def drop(self) -> None:
        """Close the connections that there are."""
        assert self._stage is not None
        self._stage.simulation.process("master").call(self._drop)

    def _drop(self) -> None:
        self.dropped_s = trio.current_time()
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()

    async def _main(self, world: World) -> None:
        codes = (21, 28, 33, 43, 45, 201, 402)
        handlers = Handlers(inline=dict.fromkeys(codes, self._answer))
        ha_port = self._port + HA_PORT - PORT
        listener = await world.network.listen("", ha_port)
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(world, ("", self._port), handlers).run)
            while True:
                nursery.start_soon(self._serve, await listener.accept())

    def _answer(self, command: Command, _connection: Connection) -> Command:
        self.asked.append(command.code)
        bodies = dict(self.bodies)
        low, end = self.bounds or (self.low, self.end)
        text = f'{{"table":{{"commitLogMinOffset":"{low}","commitLogMaxOffset":"{end}"}}}}'
        bodies[28] = text.encode()
        if self.gives_first and self.log:
            bodies[33] = self.log[: int.from_bytes(self.log[:4], "big")]
        body = bodies.get(command.code)
        if body is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, remark="not here")
        return answer(command, ResponseCode.SUCCESS, body=body)

    async def _serve(self, stream: Stream) -> None:
        self.began.append(trio.current_time())
        reports: list[int] = []
        sent = [0]
        try:
            with trio.CancelScope() as scope:
                self._scopes.append(scope)
                if self.serves:
                    async with trio.open_nursery() as nursery:
                        is_asked = trio.Event()
                        nursery.start_soon(self._hear, stream, reports, is_asked, sent)
                        nursery.start_soon(self._send, stream, reports, is_asked, sent)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)

    async def _hear(
        self, stream: Stream, reports: list[int], is_asked: trio.Event, sent: list[int]
    ) -> None:
        reader = ReportReader()
        while data := await stream.receive_some(4096):
            for offset in reader.feed(data):
                if not reports:
                    self.reports.append(reports)
                self._judge(offset, reports, sent[0])
                reports.append(offset)
                is_asked.set()
        raise trio.ClosedResourceError("the slave closed it")

    def _judge(self, offset: int, reports: list[int], sent: int) -> None:
        """No report is above what the slave has, on disk if it flushes each, or below the last; and
        none but the first, a question, is above what was sent, or comes before the slave has put on
        record whom it follows, or says that it has nothing."""
        if self.node is None:
            return
        log = self.node.store.log
        is_sync = self.node.config.store.sync_flush
        held = log.flushed.value if is_sync else log.written.value
        # An empty log asks for the master's beginning: below that nobody has anything.
        is_empty = not reports and log.written.value == log.min_offset
        if offset > max(held, log.min_offset, 1, self.low if is_empty else 0):
            self.wrong.append(f"{offset}, {held} is held (sync flush: {is_sync})")
        if not reports or not offset:
            return
        if offset < max(reports):
            self.wrong.append(f"{offset} behind {max(reports)}")
        if offset > max(sent, reports[0]):
            self.wrong.append(f"{offset}, {sent} was sent")
        followed = self.node.store.followed or ""
        if not followed.startswith("master:"):
            self.wrong.append(f"{offset} while the mark says that it follows {followed!r}")

    async def _send(
        self, stream: Stream, reports: list[int], is_asked: trio.Event, sent: list[int]
    ) -> None:
        """`sent` is told up to where it was sent the log."""
        await is_asked.wait()
        if self.is_silent:
            return
        at, quiet_s = reports[0] or self.low, 0.0
        if at < self.low:
            return
        while True:
            left = min(self.piece, SEGMENT - at % SEGMENT)
            data = self.log[at - self.low :][:left]
            quiet_s = 0.0 if data else quiet_s + LOOK_S
            if data or quiet_s >= 1:
                sent[0] = at + len(data)
                await stream.send_all(encode_transfer(at, data))
                quiet_s = 0.0
            at += len(data)
            await trio.sleep(self.pause_s if data else LOOK_S)


def catches_up(stage: Stage, master: HandMaster) -> None:
    """All that the master has is written and, at last, reported; no more ever."""
    stage.until(
        lambda: bool(master.reports) and master.reports[-1][-1] == master.end,
        f"a report of {master.end}",
    )
