"""A follower: makes its log the leader's, byte for byte, and acknowledges its progress.

A follower cuts what it has beyond the common part before it takes a byte, appends at its own end
only, and has promised the epoch durably before it acknowledges anything in it (replication.md 7.3,
7.4).
"""

import zlib
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from rocketbed.remoting.client import parse_address
from rocketbed.replication.agent import Agent
from rocketbed.replication.api import EpochLog
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.epoch_file import DISK_S, EpochFile
from rocketbed.replication.epochs import Epoch, History, check, common_end, may_be_filled
from rocketbed.replication.errors import HistoryRefused, LinkRefused, NoRoom, RecordRefused
from rocketbed.replication.kept_file import KeptFileUnwritable
from rocketbed.replication.native_link import LOST, NativeLink
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.bodies import HaClientRuntimeInfo
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha_native import Ack, Beat, Data, Fenced, Frame, Hello, Reject, Welcome
from rocketbed.world.api import World

CONNECT_S: Final = 0.3
WELCOME_S: Final = 1.0
"""A leader may be reading markers of a long log."""
RETRY_S: Final = 0.05
REFUSED_S: Final = 0.5
"""Pause after a refusal, which a repetition will meet again."""


class Follower:
    """Follows the leader of one epoch. `run` continues until cancelled."""

    def __init__(
        self,
        world: World,
        log: EpochLog,
        agent: Agent,
        file: EpochFile,
        entry: GroupEntry,
        *,
        cluster: str,
        confirm: Watermark,
    ) -> None:
        """`confirm` rises to what is confirmed, as far as we know and have it."""
        assert entry.leader is not None, entry
        self._world = world
        self._log = log
        self._agent = agent
        self._file = file
        self._cluster = cluster
        self._confirm = confirm
        self._unclean = entry.unclean
        self.epoch = entry.epoch
        self.leader = entry.leader
        self.address = entry.replicas[entry.leader].ha_address
        self._group = entry.uid
        self.refusal = ""
        """Reason why the leader refuses us, or we do not follow it; empty while that works."""
        self.lacked_room = False
        """True if the history on disk may lack epochs that the log has."""
        self._warned = ""
        """Refusal that was logged last: after a link that works at first it is repeated."""
        self._link: NativeLink | None = None
        """Link on which the leader sends us its log."""
        self._moved = trio.Event()
        self._ends: deque[int] = deque()
        """Ends of written records, one for each piece; rising."""
        self._durable = 0
        """Newest of them that is on disk."""
        self._recorded_end = log.written.value
        """End up to which the history on disk matches the log: nothing beyond is acknowledged, or a
        start would not know its epoch."""

    @property
    def is_linked(self) -> bool:
        """True if the leader sends us its log."""
        return self._link is not None

    async def fence(self) -> None:
        """Tell the leader, if it is reachable, that its epoch is over."""
        if self._link is not None:
            with suppress(*LOST):
                await self._link.say(self.epoch, Fenced(self.epoch + 1))

    def own_end_rose(self) -> None:
        """Notice that more of our own log was written, or flushed."""
        self._moved.set()

    def runtime_info(self) -> HaClientRuntimeInfo:
        """Return the answer to 907 about a follower."""
        return HaClientRuntimeInfo(
            master_addr=self.address,
            max_offset=self._log.written.value,
            is_activated=self.is_linked,
        )

    async def run(self) -> None:
        """Follow on one link after another. Raises `OSError` if the disk fails."""
        while True:
            pause_s = RETRY_S
            try:
                with trio.fail_after(CONNECT_S):
                    stream = await self._world.network.connect(*parse_address(self.address))
            except (*LOST, ValueError, trio.TooSlowError) as exc:
                self._world.log.debug("follower.no_leader", error=str(exc))
            else:
                link = NativeLink(self._world, stream)
                try:
                    await self._follow(link)
                    if link.is_faulty:
                        raise LinkRefused(link.ended_by)
                    self._world.log.info("follower.lost", reason=link.ended_by)
                except (LinkRefused, NoRoom) as exc:
                    if self._warned != str(exc):
                        self._warned = str(exc)
                        self._world.log.warning("follower.refused", reason=str(exc))
                    self.refusal, pause_s = str(exc), REFUSED_S
                except (*LOST, RemoteProtocolError) as exc:
                    self._world.log.info("follower.lost", reason=str(exc))
                finally:
                    with trio.move_on_after(1, shield=True):
                        await link.aclose()
            await trio.sleep(pause_s)

    async def _follow(self, link: NativeLink) -> None:
        if self._file.state.promised < self.epoch:
            try:
                await self._file.save(promised=self.epoch, group=self._group)
            except KeptFileUnwritable as exc:
                raise LinkRefused(str(exc)) from exc  # either state on disk will do
        await self._cut(self._log.whole_end())  # the other log cannot have half a record in common
        await link.say(self.epoch, self._hello())
        frame = await link.first(WELCOME_S)
        if frame is None:
            raise RemoteProtocolError("no answer to HELLO")
        try:
            history = self._judge(frame)
        except RecordRefused as exc:
            await self._doubt(link, exc)
            raise
        assert isinstance(frame.content, Welcome)
        await self._lower_confirm(frame.content.cut)
        await self._cut(frame.content.cut)
        self._ends, self._durable = deque([self._log.whole_end()]), 0
        if not self._file.state.is_shared:
            await self._file.save(is_shared=True)
        self._recorded_end = self._log.written.value
        self.refusal = ""
        self._world.log.info("follower.following", leader=self.leader, cut=frame.content.cut)
        self._link = link
        try:
            await link.run(
                partial(self._read, link, history),
                partial(self._acknowledge, link),
                partial(link.beat, self.epoch, self._beat),
                is_awaited=self._agent.is_member,
            )
        finally:
            self._link = None

    def _hello(self) -> Hello:
        me, log, state = self._agent.me, self._log, self._file.state
        return Hello(
            cluster=self._cluster,
            group=me.group,
            replica=me.number,
            uuid=me.uuid,
            incarnation=me.incarnation,
            promised=state.promised,
            history=tuple((epoch.number, epoch.start) for epoch in state.history),
            end=log.whole_end(),
            first=log.min_offset,
            durable=min(log.flushed.value, log.whole_end()),
            segment=log.segment_size,
        )

    def _judge(self, frame: Frame) -> History:
        """Return the leader's history. Raises `LinkRefused`, also if we compute another common
        end."""
        welcome, log = frame.content, self._log
        if isinstance(welcome, Reject):
            raise LinkRefused(f"replica {self.leader} refuses: {welcome.why}")
        if not isinstance(welcome, Welcome) or frame.epoch != self.epoch:
            raise LinkRefused(f"no WELCOME of epoch {self.epoch}")
        if welcome.leader != self.leader:
            raise LinkRefused(f"it is replica {welcome.leader}, not {self.leader}")
        try:
            theirs = check(tuple(Epoch(*pair) for pair in welcome.history), welcome.end)
        except HistoryRefused as exc:
            raise LinkRefused(f"a leader with a history that no log can have: {exc}") from exc
        end = log.whole_end()
        if end == log.min_offset:
            if welcome.cut != welcome.first:
                raise LinkRefused(f"an empty log is sent from {welcome.cut}, not from the first")
            return theirs
        mine = self._file.state.history
        state = self._file.state
        if mine[-1].number == 0 and not state.is_shared and log.copied_from != self.address:
            # Bytes from before the first epoch are the same only if they were copied from there.
            raise LinkRefused(
                f"this log is from before the group had failover, and no copy of that of replica"
                f" {self.leader}: start this one with an empty directory, which gets everything"
            )
        common = common_end(mine, end, theirs, welcome.end)
        size, cut = log.segment_size, welcome.cut
        if common is not None and cut < common and may_be_filled(theirs, cut, common, size):
            common = cut
        if common != cut:
            raise LinkRefused(f"it says that the logs part at {welcome.cut}, here at {common}")
        self._compare(welcome)
        confirmed = max(state.confirm, self._confirm.value)
        if common < confirmed and not self._is_forced():
            raise LinkRefused(
                f"the logs part at {common}, and everything below {confirmed} was confirmed: one of"
                " the two is not of this group, or its disk was put back: move the directory that"
                " has less to keep away, and start that node with an empty one and a number that no"
                " replica had yet (rbReplica)"
            )
        return theirs

    def _compare(self, welcome: Welcome) -> None:
        """Compare the end of the common part: epochs say that the logs are the same there, but a
        log of another group may have the same epochs."""
        start, cut, log = welcome.compared, welcome.cut, self._log
        if (
            not log.min_offset <= start < cut
            or start // log.segment_size != (cut - 1) // log.segment_size
        ):
            return
        try:
            mine = log.read(start, cut - start)
        except OSError as exc:
            raise LinkRefused(f"it cannot read its log at {start}: {exc.strerror}") from exc
        if zlib.crc32(mine) != welcome.crc:
            raise RecordRefused(
                f"this log and that of replica {self.leader} have the same epochs, and other bytes"
                f" between {start} and {cut}: one of the two is another group's, or is damaged"
                " there: move the directory that does not belong here away, and start that node"
                " with an empty one",
                offset=start,
            )

    def _is_forced(self) -> bool:
        """True if an operator has accepted a loss since this log ended (R9)."""
        newest = self._file.state.history[-1].number
        return any(epoch > newest for epoch in self._unclean)

    async def _lower_confirm(self, cut: int) -> None:
        if cut < self._confirm.value:
            self._world.log.warning(
                "follower.confirmed_cut", start=cut, confirmed=self._confirm.value
            )
            await self._file.save(confirm=min(cut, self._file.state.confirm))
            self._confirm.reset(cut)

    async def _cut(self, offset: int) -> None:
        """Cut what is beyond `offset`, and finish a cut that found no room."""
        log, file = self._log, self._file
        if log.written.value > offset or file.state.cut_to is not None:
            self._world.log.info("follower.cut", start=offset, end=log.written.value)
            await file.cut(log, min(offset, log.written.value))

    async def _read(self, link: NativeLink, history: History) -> None:
        while (frame := await link.next()) is not None:
            if frame.epoch != self.epoch:
                raise RemoteProtocolError(f"a frame of epoch {frame.epoch}, not {self.epoch}")
            match frame.content:
                case Data(offset, confirm, body):
                    try:
                        await self._append(history, offset, body)
                    except RecordRefused as exc:
                        await self._doubt(link, exc)
                        raise
                    self._raise_confirm(confirm)
                case Beat(_, confirm, _):
                    self._raise_confirm(confirm)
                case content:
                    raise RemoteProtocolError(f"a leader sends no {type(content).__name__}")

    async def _doubt(self, link: NativeLink, refusal: RecordRefused) -> None:
        """Report a bad record in its log to the leader."""
        with suppress(*LOST):
            await link.say(self.epoch, Reject(why=str(refusal), first=refusal.offset))

    async def _append(self, history: History, offset: int, body: bytes) -> None:
        log = self._log
        is_empty = log.written.value == log.min_offset
        if offset != log.written.value and not is_empty:
            raise RemoteProtocolError(f"bytes at {offset}, and the log ends at {log.written.value}")
        end = offset + len(body)
        if offset // log.segment_size != (end - 1) // log.segment_size:
            raise RemoteProtocolError(f"bytes from {offset} to {end}, across files of the log")
        try:
            log.append_raw(offset, body)
        except OSError as exc:
            raise LinkRefused(f"it cannot write its log: {exc}") from exc
        except RecordRefused:
            await self._record_epochs(history, log.whole_end())
            raise
        await self._record_epochs(history, end)
        self._recorded_end = end
        self._ends.append(log.whole_end())
        self._moved.set()

    async def _record_epochs(self, history: History, end: int) -> None:
        """Record epochs that have begun below `end`, or our next HELLO lacks them."""
        mine = self._file.state.history
        newest = mine[-1].number if mine else -1
        begun = tuple(epoch for epoch in history if epoch.number > newest and epoch.start < end)
        if begun:
            with trio.fail_after(DISK_S, shield=True):
                try:
                    await self._file.save(history=(*mine, *begun))
                except NoRoom:
                    self.lacked_room = True
                    raise

    def _raise_confirm(self, confirm: int) -> None:
        self._confirm.advance(min(confirm, self._log.whole_end()))

    async def _acknowledge(self, link: NativeLink) -> None:
        log, me = self._log, self._agent.me
        sent = None
        while True:
            self._moved = trio.Event()
            if log.written.value <= self._recorded_end:
                ack = Ack(log.whole_end(), self._durable_end(), me.incarnation)
                if ack != sent:
                    await link.say(self.epoch, ack)
                    sent = ack
            await self._moved.wait()

    def _durable_end(self) -> int:
        """Return the end of a record: the log may be flushed up to the middle of one, and nothing
        is confirmed up to there."""
        while self._ends and self._ends[0] <= self._log.flushed.value:
            self._durable = self._ends.popleft()
        return self._durable

    def _beat(self) -> Beat:
        return Beat(self._log.whole_end(), self._confirm.value, bool(self._agent.unfit()))
