"""The master's side of classic replication: a task for each slave (replication.md 1.4, 7.13).

The log is sent to its written end, as RocketMQ does. Deliberate differences: an empty slave is
served from the first segment rather than the last file (`last_file` gives upstream's behaviour);
the first report is only a request and acknowledges nothing, since a slave of another history may
send it before a comparison; a slave that requests bytes we do not have is closed, with a log line,
not left with heartbeats for ever; a report beyond our end is not an acknowledgement.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import trio

from rocketbed.replication.api import SentLog
from rocketbed.replication.confirm import GAP_MAX, AckBoard, Link, count_in_sync, is_in_sync
from rocketbed.replication.errors import ReplicationError, ReplicationPortTaken, SlaveRefused
from rocketbed.wire.bodies import HaConnectionInfo, HaRuntimeInfo
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha import (
    BATCH_SIZE,
    TRANSFER_SIZE_MAX,
    Peer,
    ReportReader,
    encode_transfer,
    encode_transfer_head,
    sniff,
)
from rocketbed.world.api import Address, Stream, World

Native = Callable[[Stream, bytes], Awaitable[None]]
HEARTBEAT_S: Final = 5.0
"""Silence after which a master sends its position (`haSendHeartbeatInterval`)."""
HOUSEKEEPING_S: Final = 20.0
"""Silence after which either side gives a connection up (`haHousekeepingInterval`)."""
ACCEPT_RETRY_S: Final = 0.1
"""Pause after a failed accept (no descriptors left), so that the loop does not spin."""
READ_SIZE: Final = 4096
LIVE_BATCHES: Final = 8
"""Frames of the live tail that are sent with one call."""

Fresh = Literal["first", "last_file"]
Part = Callable[[], Awaitable[None]]


class Master:
    """Serves slaves on the replication port until cancelled."""

    def __init__(
        self,
        world: World,
        log: SentLog,
        board: AckBoard,
        *,
        host: str = "",
        port: int = 10912,
        fresh: Fresh = "first",
        batch_size: int = BATCH_SIZE,
        gap_max: int = GAP_MAX,
        connections_max: int = 0,
        heartbeat_s: float = HEARTBEAT_S,
        housekeeping_s: float = HOUSEKEEPING_S,
    ) -> None:
        """`batch_size` is the most bytes of one frame (`haTransferBatchSize`).

        Beyond `connections_max` (0: no limit) a new connection replaces the one that has been
        silent for longest, and is closed at once if there is no silent one.
        """
        self.world = world
        self.log = log
        self.board = board
        self.batch_size = min(batch_size, TRANSFER_SIZE_MAX)
        self.fresh = fresh
        self.native: Native | None = None
        """Serves a peer that speaks our own protocol, with its first bytes; None: refused."""
        self.heartbeat_s = heartbeat_s
        self.housekeeping_s = housekeeping_s
        self.address: Address = (host, port)
        """Listening address; the true port once `run` has started."""
        self.slaves: dict[Link, SlaveConnection] = {}
        """Slaves being served, by their link on the board."""
        self._gap_max = gap_max
        self._connections = 0
        self._silent: dict[SlaveConnection, None] = {}
        """Connections that have sent nothing yet, the oldest first."""
        self._is_full = False
        self._connections_max = connections_max

    async def run(self, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and serve. Raises `ReplicationPortTaken`."""
        try:
            listener = await self.world.network.listen(*self.address)
        except OSError as exc:
            raise ReplicationPortTaken(f"{exc.strerror or exc} (haListenPort)") from exc
        self.address = listener.address
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(self.address)
                while True:
                    try:
                        stream = await listener.accept()
                    except OSError as exc:
                        self.world.log.warning("replication.accept_failed", error=str(exc))
                        await trio.sleep(ACCEPT_RETRY_S)
                        continue
                    nursery.start_soon(self._serve, stream)
        finally:
            with trio.move_on_after(1, shield=True):
                await listener.aclose()

    def runtime_info(self) -> HaRuntimeInfo:
        """Return the answer to 907."""
        end = self.log.written.value
        return HaRuntimeInfo(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=count_in_sync(
                end, (link.acknowledged for link in self.board.links), self._gap_max
            ),
            ha_connection_info=[
                HaConnectionInfo(
                    addr=f"{slave.peer[0]}:{slave.peer[1]}",
                    slave_ack_offset=link.acknowledged,
                    diff=end - link.acknowledged,
                    in_sync=is_in_sync(end, link.acknowledged, self._gap_max),
                    transfer_from_where=slave.position,
                )
                for link, slave in self.slaves.items()
            ],
        )

    def drop_slaves(self, reason: str) -> None:
        """End every connection: the data sent on it is not our log any more."""
        for slave in list(self.slaves.values()):
            slave.drop(reason)

    def no_longer_silent(self, connection: "SlaveConnection") -> None:
        """Remove a connection from the silent ones: it sent something, or ended."""
        self._silent.pop(connection, None)

    async def _serve(self, stream: Stream) -> None:
        self._connections += 1
        try:
            was_full = self._is_full
            self._is_full = 0 < self._connections_max < self._connections
            if self._is_full and not was_full:
                self.world.log.warning(
                    "replication.full", port=self.address[1], connections=self._connections_max
                )
            if self._is_full:
                oldest = next(iter(self._silent), None)
                if oldest is None:
                    return
                oldest.drop("")
                self.no_longer_silent(oldest)
            connection = SlaveConnection(self, stream)
            self._silent[connection] = None
            try:
                await connection.run()
            finally:
                self.no_longer_silent(connection)
        except OSError:  # the peer disconnected, and its address is unknown
            return
        finally:
            self._connections -= 1
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)


class SlaveConnection:
    """A slave: a task that reads its acknowledgements, one that sends it the log."""

    def __init__(self, master: Master, stream: Stream) -> None:
        self.peer = master.world.network.peer_address(stream)
        self.position = 0
        """Offset of the next byte to send."""
        self._master = master
        self._world = master.world
        self._log = master.log
        self._stream = stream
        self._reports = ReportReader()
        self._link = Link(self.peer[0])
        self._reason = ""
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Serve until either side ends it; logs why."""
        first = None
        with self._scope:
            first = await self._first_bytes()
        self._master.no_longer_silent(self)
        if first is None:
            return
        if sniff(first) is Peer.NATIVE:
            assert self._master.native is not None
            await self._master.native(self._stream, first)
            return
        if not self._begin(first):
            return
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._until_lost, nursery, self._read_reports)
                nursery.start_soon(self._until_lost, nursery, self._send_log)
        finally:
            self._master.board.leave(self._link)
            self._master.slaves.pop(self._link, None)
        if self._reason:
            self._world.log.info(
                "replication.slave_lost", slave=self._name, reason=self._reason, at=self.position
            )

    def drop(self, reason: str) -> None:
        self._reason = reason
        self._scope.cancel()

    @property
    def _name(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    async def _first_bytes(self) -> bytes | None:
        """Return the peer's first bytes, once it is clear that a classic slave sends them; None if
        not."""
        received = b""
        peer = None
        try:
            with trio.move_on_after(self._master.housekeeping_s):
                while (peer := sniff(received)) is None:
                    part = await self._stream.receive_some(READ_SIZE)
                    if not part:
                        return None
                    received += part
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        if peer is Peer.CLASSIC or (peer is Peer.NATIVE and self._master.native is not None):
            return received
        problem = "said nothing" if peer is None else f"speaks the {peer.value} protocol"
        self._world.log.error("replication.peer_refused", peer=self._name, reason=problem)
        return None

    def _begin(self, first: bytes) -> bool:
        """Take the first report and set the start; False if the slave is refused."""
        try:
            offset = self._newest(first)
            self.position = self._start_for(offset)
            self._link.offered = max(self.position, offset)
        except (ReplicationError, RemoteProtocolError) as exc:
            self._refuse(exc)
            return False
        self._master.board.join(self._link)
        self._master.slaves[self._link] = self
        self._world.log.info(
            "replication.slave_joined", slave=self._name, reported=offset, start=self.position
        )
        return True

    def _start_for(self, reported: int) -> int:
        """Return the start for a first report (replication.md 1.7, 7.13). Raises `SlaveRefused`."""
        log = self._log
        if reported == 0:
            if self._master.fresh == "first":
                return log.min_offset
            return max(log.min_offset, log.written.value - log.written.value % log.segment_size)
        if reported < log.min_offset:
            raise SlaveRefused(
                f"it has the log up to {reported}, ours begins at {log.min_offset}: empty its"
                " store directory, so that it copies the whole log"
            )
        return reported

    def _newest(self, data: bytes | bytearray) -> int:
        """Return the newest report among some bytes; raises `SlaveRefused` beyond our end."""
        offsets = self._reports.feed(data)
        if not offsets:
            return self._link.acknowledged
        end = self._log.written.value
        # Never an acknowledgement: this master has lost the slave's data, or never had it.
        if max(offsets) > end:
            raise SlaveRefused(
                f"it reports {max(offsets)}, our log ends at {end}: it holds what"
                " this master lost, or is no slave of it; compare the two before it is emptied"
            )
        return offsets[-1]

    async def _read_reports(self) -> None:
        # Only reports after the first one reach the board: the first is a request, and its sender
        # may hold another history's bytes below that offset.
        board = self._master.board
        while True:
            data: bytes | bytearray = b""
            with trio.move_on_after(self._master.housekeeping_s) as scope:
                data = await self._stream.receive_some(READ_SIZE)
            if scope.cancelled_caught:
                self._reason = f"no report for {self._master.housekeeping_s:g} s"
                return
            if not data:
                self._reason = "it closed the connection"
                return
            newest = self._newest(data)
            offered = self._link.offered
            if newest > offered:
                raise SlaveRefused(
                    f"it acknowledges {newest}, but only what lies below {offered} was sent"
                    " to it: it is no slave, or its log is not ours"
                )
            board.acknowledge(self._link, newest)

    async def _send_log(self) -> None:
        log = self._log
        while True:
            if self.position < log.written.value:
                await self._send_some()
                continue
            with trio.move_on_after(self._master.heartbeat_s) as scope:
                await log.written.wait_above(self.position)
            if scope.cancelled_caught:
                await self._stream.send_all(encode_transfer(self.position, b""))

    async def _send_some(self) -> None:
        """Send the available bytes, up to the segment's end: a full batch from the file, else a
        copy."""
        log = self._log
        start = self.position
        if start < log.min_offset:
            raise SlaveRefused(
                f"it needs {start}, which has expired: our log begins at {log.min_offset} now"
            )
        to_segment_end = log.segment_size - start % log.segment_size
        available = min(log.written.value - start, to_segment_end)
        batch = self._master.batch_size
        if available >= LIVE_BATCHES * batch:
            self._link.offered = max(self._link.offered, start + batch)
            await self._send_from_file(start, batch)
            return
        data = log.read_cached(start, available)
        if data is None:
            with log.pinned(start) as (file, at):
                data = await self._world.offload(file.read_at, at, available)
        if not data:
            raise SlaveRefused(
                f"our log has nothing at {start}, though it ends at {log.written.value}"
            )
        self._link.offered = max(self._link.offered, start + len(data))
        frames = [
            encode_transfer(start + at, data[at : at + batch]) for at in range(0, len(data), batch)
        ]
        await self._stream.send_all(b"".join(frames))
        self.position = start + len(data)

    async def _send_from_file(self, start: int, size: int) -> None:
        # Pinned over both awaits: retention may delete the segment between head and body, and a
        # head without its bytes would break the stream.
        with self._log.pinned(start) as (file, at):
            await self._stream.send_all(encode_transfer_head(start, size))
            await self._world.network.send_file(self._stream, file, at, size)
        self.position = start + size

    async def _until_lost(self, nursery: trio.Nursery, part: Part) -> None:
        """Run one of the two tasks; its end is the connection's."""
        try:
            await part()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._reason = self._reason or (str(exc) or type(exc).__name__)
        except (ReplicationError, RemoteProtocolError) as exc:
            self._refuse(exc)
        nursery.cancel_scope.cancel()

    def _refuse(self, error: Exception) -> None:
        self._world.log.error("replication.slave_refused", slave=self._name, reason=str(error))
