"""A classic master: it serves a log that the test may change, and checks what a slave reports."""

from typing import Final

import trio

from rocketbed.node.node import Node
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.ha import ReportReader, encode_transfer
from rocketbed.world.api import Stream, World
from tests.model.stage import HA_PORT, PORT, SEGMENT, Stage

POLL_S: Final = 0.05
Code = RequestCode
TABLES: Final = (
    Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_MESSAGE_REQUEST_MODE,
)  # fmt: skip


class ScriptedMaster:
    """Host `master`; its log begins at `low`."""

    def __init__(self, log: bytes, *, low: int = 0, gives_first: bool = True) -> None:
        self.log, self.low, self.gives_first = log, low, gives_first
        self.bodies: dict[int, bytes] = {}
        """Answers by request code; other requests are refused."""
        self.requests: list[int] = []
        self.reports: list[list[int]] = []
        """Reported offsets of each connection."""
        self.dialled: list[float] = []
        """Time of each connection."""
        self.serves = True
        self.is_silent = False
        """True while it does not react to reports."""
        self.dropped_s = 0.0
        self.node: Node | None = None
        """Slave whose reports are compared with what it has."""
        self.errors: list[str] = []
        self._scopes: list[trio.CancelScope] = []
        self._stage: Stage | None = None

    @property
    def end(self) -> int:
        return self.low + len(self.log)

    def start(self, stage: Stage) -> None:
        self._stage = stage
        stage.simulation.start("master", self._main)
        stage.simulation.run(0.1)

    def drop(self) -> None:
        """Close all connections."""
        assert self._stage is not None
        self._stage.simulation.process("master").call(self._drop)

    def _drop(self) -> None:
        self.dropped_s = trio.current_time()
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()

    def wait_copied(self, stage: Stage) -> None:
        """Wait until the slave has reported the end of the log."""
        stage.until(
            lambda: bool(self.reports) and self.reports[-1][-1] == self.end,
            f"a report of {self.end}",
        )
        assert not self.errors, "reported: " + "; ".join(self.errors[:3])

    async def _main(self, world: World) -> None:
        codes = (*TABLES, Code.GET_BROKER_RUNTIME_INFO, Code.VIEW_MESSAGE_BY_ID)
        handlers = Handlers(inline=dict.fromkeys(map(int, codes), self._answer))
        listener = await world.network.listen("", HA_PORT)
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(world, ("", PORT), handlers).run)
            while True:
                nursery.start_soon(self._serve, await listener.accept())

    def _answer(self, command: Command, _connection: Connection) -> Command:
        self.requests.append(command.code)
        bounds = f'"commitLogMinOffset":"{self.low}","commitLogMaxOffset":"{self.end}"'
        bodies = {Code.GET_BROKER_RUNTIME_INFO: b'{"table":{%s}}' % bounds.encode(), **self.bodies}
        if self.gives_first and self.log:
            bodies[Code.VIEW_MESSAGE_BY_ID] = self.log[: int.from_bytes(self.log[:4], "big")]
        body = bodies.get(command.code)
        if body is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, remark="not here")
        return answer(command, ResponseCode.SUCCESS, body=body)

    async def _serve(self, stream: Stream) -> None:
        self.dialled.append(trio.current_time())
        reports: list[int] = []
        try:
            with trio.CancelScope() as scope:
                self._scopes.append(scope)
                if self.serves:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._receive, stream, reports, nursery)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)

    async def _receive(self, stream: Stream, reports: list[int], nursery: trio.Nursery) -> None:
        reader, sent = ReportReader(), [0]
        while data := await stream.receive_some(4096):
            for offset in reader.feed(data):
                self._check(offset, reports, sent[0])
                reports.append(offset)
                if len(reports) == 1:
                    self.reports.append(reports)
                    nursery.start_soon(self._send, stream, offset, sent)
        raise trio.ClosedResourceError("the slave closed it")

    def _check(self, offset: int, reports: list[int], sent: int) -> None:
        """A first report is a question. Later ones never fall, nor exceed what was sent, and come
        after the slave has recorded whom it follows; none exceeds what it has, or has synced."""
        if self.node is None:
            return
        log, is_sync = self.node.store.log, self.node.config.store.sync_flush
        held = log.flushed.value if is_sync else log.written.value
        is_empty = not reports and log.written.value == log.min_offset
        if offset > max(held, log.min_offset, 1, self.low if is_empty else 0):
            self.errors.append(f"{offset}, the slave has {held} (sync flush: {is_sync})")
        if not reports or not offset:
            return
        if not max(reports) <= offset <= max(sent, reports[0]):
            self.errors.append(f"{offset} after {max(reports)}, {sent} was sent")
        followed = self.node.store.followed or ""
        if not followed.startswith("master:"):
            self.errors.append(f"{offset} while it is recorded that it follows {followed!r}")

    async def _send(self, stream: Stream, first: int, sent: list[int]) -> None:
        """Send pieces that end within records, and a heartbeat each second without data."""
        at, quiet_s = first or self.low, 0.0
        while not self.is_silent and at >= self.low:
            data = self.log[at - self.low :][: min(3000, SEGMENT - at % SEGMENT)]
            quiet_s = 0.0 if data else quiet_s + POLL_S
            if data or quiet_s >= 1:
                sent[0] = at + len(data)
                await stream.send_all(encode_transfer(at, data))
                quiet_s = 0.0
            at += len(data)
            await trio.sleep(0.001 if data else POLL_S)
