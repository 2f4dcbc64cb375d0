"""The slave's side of classic replication: follow one master, byte for byte (replication.md 1.5).

The protocol only knows positions, so a slave whose log has other bytes than its master's would
follow blindly for ever: a master that lost its tail in a power cut and went on is such a case. Ours
therefore requests, by its first report, a last piece of what it already has, and compares it before
it appends or acknowledges anything; a real master serves that as well. Logs that differ, or a
master that has less than we do, are refused and logged at every attempt (design.md 13); a slave
with a cutter searches the last common record instead (`replication.prefix`), cuts its log there,
saving a copy of what it cuts, and follows.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from rocketbed.replication.api import LogCutter, MasterMemory, ReplicaLog
from rocketbed.replication.errors import CutRefused, NothingInCommon, ReplicationError
from rocketbed.replication.follow import MasterConnection, address_text
from rocketbed.replication.fresh import LogBounds, LogStart
from rocketbed.replication.prefix import Divergence, PrefixSearch
from rocketbed.wire.bodies import HaClientRuntimeInfo
from rocketbed.world.api import Address, World

HEARTBEAT_S: Final = 5.0
"""Silence after which a slave acknowledges again (`haSendHeartbeatInterval`)."""
HOUSEKEEPING_S: Final = 20.0
"""Silence after which either side gives a connection up (`haHousekeepingInterval`)."""
CONNECT_S: Final = 5.0
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 0.5
"""Pause before reconnecting: doubles from the first to the last (RocketMQ: always 5 s). Short,
since a returning master acknowledges nothing synchronous until a slave is connected."""
REFUSED_S: Final = 5.0
"""Pause after a refused master: it will not change soon."""
BOUNDS_S: Final = 2.0
"""Time after which a master whose bounds are unknown is compared with all the same."""

_HEAL_IT: Final = (
    "stop that master, which has lost what this slave may be the only one to have, and make this"
    " slave the master, or heal that master's log from it (`rocketbed store heal DIR --from` this"
    " node's haListenPort)"
)


class Slave:
    """Follows a master until cancelled. `set_master` sets it; None for none."""

    def __init__(
        self,
        world: World,
        log: ReplicaLog,
        *,
        report_flushed: bool = False,
        cutter: LogCutter | None = None,
        memory: MasterMemory | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        housekeeping_s: float = HOUSEKEEPING_S,
    ) -> None:
        """`report_flushed` acknowledges only what is on disk (SYNC_FLUSH, design.md 11).

        With a `cutter` a log that is not a part of the master's is cut to the common part
        (`rbDiverged=cut`), else it is refused. It is refused too if `memory` has this very master
        as the one followed before: it came back with less than it had.
        """
        self.world = world
        self.log = log
        self.report_flushed = report_flushed
        self.heartbeat_s = heartbeat_s
        self.housekeeping_s = housekeeping_s
        self.master: Address | None = None
        self.state = "idle"
        """`idle`, `connecting`, `comparing`, `cutting`, `following` or `refused`."""
        self.refusal: ReplicationError | None = None
        """Reason why the last master was refused."""
        self._fetched_end = 0
        """End of the first message, if it was fetched before a master was followed."""
        self.received = 0
        """Bytes appended since the start of the process."""
        self.find_start: Callable[[], Awaitable[LogStart | None]] | None = None
        """Returns the start of the master's log, for an empty slave; None leaves it to the
        master."""
        self.find_bounds: Callable[[], Awaitable[LogBounds | None]] | None = None
        """Returns the bounds of the master's log, for a slave that may cut its own."""
        self.only_masters = False
        """True to refuse nodes that are slaves themselves: as a former master such a node may have
        an end that is still to be cut, and would spread it."""
        self.on_mistaken: Callable[[], None] | None = None
        """Called each time that such a node was refused: the nameserver that named it was wrong."""
        self.last_loss = ""
        """Reason of the last failed connection; the same one is logged once, not at every
        attempt."""
        self.on_following: list[Callable[[], None]] = []
        """Called each time that a master was found to have the same log."""
        self.search = None if cutter is None else PrefixSearch(log, cutter)
        self._cutter = cutter
        self.memory = memory
        self._changed = trio.Event()
        self._scope: trio.CancelScope | None = None

    def set_master(self, address: Address | None) -> None:
        """Follow the master at this replication address from now on."""
        if address == self.master:
            return
        self.world.log.info("replication.master_set", master=address_text(address))
        self.master = address
        if self.search is not None:
            self.search.reset()
        self._changed.set()
        self._changed = trio.Event()
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        pause = RETRY_FIRST_S
        while True:
            if self.master is None:
                self.state = "idle"
                await self._changed.wait()
                pause = RETRY_FIRST_S
                continue
            address, changed = self.master, self._changed
            followed = await self._attempt(address)
            if self.state == "cutting":
                continue
            if self.state == "refused":
                pause = REFUSED_S
            else:
                pause = RETRY_FIRST_S if followed else min(2 * pause, RETRY_LAST_S)
            with trio.move_on_after(pause):
                await changed.wait()

    def runtime_info(self) -> HaClientRuntimeInfo:
        """Return the answer to 907 about a slave."""
        return HaClientRuntimeInfo(
            master_addr=address_text(self.master),
            max_offset=self.log.written.value,
            is_activated=self.state == "following",
        )

    async def _attempt(self, address: Address) -> bool:
        """Run one connection, to its end. Return True if the master had the same log.

        The state is `cutting` afterwards if the next one should follow without a pause.
        """
        self.state = "connecting"
        with trio.CancelScope() as self._scope:
            try:
                with trio.fail_after(CONNECT_S):
                    start = await self._begin_empty_log()
                    if not await self._ask_bounds():
                        self.lost(address, "it is a slave itself, whose log may still be truncated")
                        if self.on_mistaken is not None:
                            self.on_mistaken()
                        return False
                    stream = await self.world.network.connect(*address)
            except (OSError, trio.TooSlowError) as exc:
                self.lost(address, f"cannot connect: {str(exc) or type(exc).__name__}")
                return False
            if self.search is not None:
                self.search.advice = self.advice(address)
            try:
                connection = MasterConnection(self, address, stream, start)
                followed = await connection.run()
                self._fetched_end = 0 if followed else self._fetched_end
            except NothingInCommon as exc:
                await self._restart_empty(address, exc)
                return False
            finally:
                with trio.move_on_after(1, shield=True):
                    await trio.aclose_forcefully(stream)
            if connection.divergence is not None:
                await self._settle(address, connection.divergence)
            return followed
        return False

    async def _ask_bounds(self) -> bool:
        """Get the bounds of the master's log, before ours is compared with it. Return True to
        follow it."""
        if self.search is None:
            return True
        bounds = None
        if self.find_bounds is not None:
            with trio.move_on_after(BOUNDS_S):
                bounds = await self.find_bounds()
        self.search.bounds = None if self.log.written.value == self.log.min_offset else bounds
        return bounds is None or not (bounds.is_slave and self.only_masters)

    async def _settle(self, address: Address, divergence: Divergence) -> None:
        """Cut the log to the part in common with the master's, or search further down."""
        assert self.search is not None
        assert self._cutter is not None
        log = self.world.log
        self.world.mark("replication.diverged")
        log.info("replication.diverged", compared_from=divergence.first, at=divergence.offset)
        end = self.log.written.value
        try:
            common = await self.search.judge(divergence)
            self.state = "cutting"
            if common is None:
                return
            self._may_cut(address, divergence, common.end)
            path, size = await self._cutter.cut(common.end)
        except (NothingInCommon, CutRefused) as exc:
            self.refuse(address, exc)
            return
        self.search.reset()
        self.world.mark("replication.cut")
        log.warning(
            "replication.cut",
            master=address_text(address),
            reason=divergence.reason,
            start=common.end,
            end=end,
            bytes=size,
            kept=path,
        )

    def master_name(self, address: Address) -> str:
        """Return a master's name for `memory`: its address, and the number of its promotion."""
        number = self._cutter.promotion if self._cutter is not None else 0
        return address_text(address) + (f"#{number}" if number else "")

    def advice(self, address: Address) -> str:
        """Return advice about a master that has less than this log, which followed it before; empty
        if this log followed another one."""
        before = self._followed_since(address)
        return "" if before is None else f"{before}: {_HEAL_IT}"

    def _may_cut(self, address: Address, divergence: Divergence, offset: int) -> None:
        """Raise `CutRefused` for the same master that came back shorter, or with other bytes.

        A promotion makes another node the master. If promotions are numbered (`cut:N`), only the
        number shows it: one machine has several addresses. Without a promotion the master lost its
        end, and this slave's data may be all that is left of what was acknowledged (design.md 24).
        """
        assert self._cutter is not None
        if self._cutter.cut_at == offset:
            return
        if self._cutter.cut_at >= 0:
            raise CutRefused(
                f"{divergence.reason}; both have the log up to {offset}, but"
                f" rbDiverged={self._cutter.cut_at} allows a truncation there only"
            )
        if (before := self._followed_since(address)) is not None:
            raise CutRefused(
                f"{divergence.reason}; {before}, so it is not truncated for"
                f" {address_text(address)}: {_HEAL_IT}, or set rbDiverged={offset} on this"
                " slave to give up what it has behind that"
            )

    def _followed_since(self, address: Address) -> str | None:
        """Return the master that this log followed since the promotion in `rbDiverged`, or, without
        one there, at this address; None if there is none."""
        name = "" if self.memory is None else self.memory.followed
        if name is None:
            return "which master this slave followed is not known, since its mark was lost"
        before, _, number = name.partition("#")
        promotion = self._cutter.promotion if self._cutter is not None else 0
        is_same = int(number or 0) >= promotion if promotion else name == self.master_name(address)
        if not name or not is_same:
            return None
        return f"this slave followed {before} before, and there was no promotion since"

    def refuse(self, address: Address, error: ReplicationError) -> None:
        """Refuse this master in its present state."""
        self.state = "refused"
        self.refusal = error
        self.world.log.error("replication.refused", master=address_text(address), reason=str(error))

    async def _begin_empty_log(self) -> int:
        """Return the report of an empty log instead of 0; first appends the first message, if
        available."""
        if self.find_start is None or self.log.written.value > self.log.min_offset:
            return 0
        start = await self.find_start()
        if start is None:
            return 0
        # With the first message in place the report is above 0, for which a RocketMQ master would
        # send its last segment only (replication.md 1.7).
        if start.data:
            self.log.append_raw(start.offset, start.data)
            self._fetched_end = self.log.written.value
        return start.offset

    async def _restart_empty(self, address: Address, error: NothingInCommon) -> None:
        """Drop the first message if that is all we have, and the master has deleted it since; else
        refuse the master's log."""
        if self._cutter is None or not self._fetched_end == self.log.written.value > 0:
            self.refuse(address, error)
            return
        try:
            await self._cutter.cut(self.log.min_offset)
        except CutRefused as exc:
            self.refuse(address, exc)
            return
        self._fetched_end = 0
        if self.search is not None:
            self.search.reset()
        self.state = "cutting"
        self.world.log.info("replication.begun_again", master=address_text(address))

    def lost(self, address: Address, reason: str) -> None:
        """Note that a connection to a master ended, or failed."""
        self.state = "connecting"
        log = self.world.log.debug if reason == self.last_loss else self.world.log.info
        log("replication.master_lost", master=address_text(address), reason=reason)
        self.last_loss = reason
