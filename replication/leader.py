"""The leader of one epoch: sends followers the log, confirms, and keeps the in-sync set.

What it may confirm and whom it may add or leave out is decided by `insync.py`; the register is
asked through the agent. One object lives for one epoch: whoever leads again has another one
(replication.md 7.4, 7.5).
"""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from rocketbed.remoting.errors import RemotingError
from rocketbed.replication.agent import Agent
from rocketbed.replication.api import EpochLog
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.epochs import Epoch, History, check, common_end, may_be_filled
from rocketbed.replication.errors import (
    ChangeRefused,
    HistoryRefused,
    LinkRefused,
    ReplicationError,
    Superseded,
)
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.membership import Membership, Served
from rocketbed.replication.native_link import NativeLink
from rocketbed.replication.pace import Pace
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha_native import (
    BODY_MAX,
    COMPARED_MAX,
    Ack,
    Beat,
    Data,
    Fenced,
    Frame,
    Hello,
    Reject,
    Welcome,
    encode,
    encode_data_head,
)
from rocketbed.world.api import World

LOOK_S: Final = 0.05
"""How often the in-sync set is looked at."""
HAND_OVER_S: Final = 1.0
"""For a member to have all of the log, once nothing is added to it."""
HAND_OVER_LOOK_S: Final = 0.002
LIVE_BODY: Final = 256 * 1024
ALONE_S: Final = 3.0
"""A leader whom nobody reaches gives way to one that may be reached."""
WINDOW: Final = 8 * 1024 * 1024
"""Bytes on their way to a follower that it has not acknowledged."""


class Leader:
    """See the module. `run` ends when the epoch is over for this replica."""

    def __init__(
        self,
        world: World,
        log: EpochLog,
        agent: Agent,
        entry: GroupEntry,
        history: History,
        *,
        cluster: str,
        catch_up_rate: int,
    ) -> None:
        """`entry` names us; `history` ends with the epoch's marker, which is durable. Those that
        are far behind get `catch_up_rate` bytes a second together, 0 for no limit."""
        self._world = world
        self._log = log
        self._agent = agent
        self._cluster = cluster
        self._catch_up = Pace(catch_up_rate)
        self.history = history
        self.epoch = entry.epoch
        self.view = InSyncView(agent.me.number, history[-1].start, entry)
        self.confirm = Watermark()
        """Below it everything is confirmed. Invariant: what the view says."""
        self._followers: dict[int, Served] = {}
        self._refused: dict[int | None, str] = {}
        """Why each was refused last, until it is served; None stands for all not registered."""
        self._membership = Membership(self.view, self._followers)
        self.doubted: int | None = None
        """Where a follower found our log no good, bytes, until somebody has looked."""
        self._doubts: dict[int, Reject] = {}
        """What each follower said of it last, until it has acknowledged more."""
        self._fillers: dict[int, int] = {}
        """Where what fills a file before an epoch's start begins, where that was looked for."""
        self._is_over = False
        self._alone_since = world.clock.monotonic()
        """When somebody followed last who had to, as far as `is_in_the_way` has looked."""
        self.hands_over = False
        """While another one is made to lead: nothing is taken meanwhile."""
        self.before_hand_over: Callable[[], None] = lambda: None
        """Called when nothing more is taken: to put what is not in the log yet."""
        self.own_end_rose()

    @property
    def is_over(self) -> bool:
        """Whether another one leads, as far as is known."""
        return self._is_over

    def may_append(self) -> bool:
        """Whether producers may be served: enough are in sync, and the lease holds or every member
        of the in-sync set still acknowledges at this epoch, which no later leader would."""
        return self.is_acting() and not self.hands_over and self.view.has_enough()

    def is_acting(self) -> bool:
        """Whether nobody else can lead yet, as far as the lease says, or has confirmed anything."""
        return not self._is_over and (self._agent.lease_s() > 0 or self._is_followed())

    def _is_followed(self) -> bool:
        others = [one for one in self.view.need() if one[0] != self.view.me]
        return bool(others) and all(
            number in self._followers and self._followers[number].hello.incarnation == incarnation
            for number, incarnation in others
        )

    def is_outdone(self) -> bool:
        """Whether this replica would be a bad leader, and some member says that it would not."""
        return bool(self._agent.unfit()) and bool(self._fit_members())

    def _fit_members(self) -> list[int]:
        known = self._followers
        members = sorted(self.view.known.in_sync)
        return [one for one in members if one in known and not known[one].is_unfit]

    def is_in_the_way(self) -> bool:
        """Whether nothing can be confirmed here, another one who is there could lead, and a fault
        of our log, or of our links, may be why nobody follows."""
        now = self._world.clock.monotonic()
        if self._followers or self.view.has_enough() or not self._agent.rival:
            self._alone_since = now
        is_bad = bool(self._doubts or self._agent.unfit()) or now > self._alone_since + ALONE_S
        return is_bad and not self.view.has_enough() and self._agent.rival

    async def hand_over(self, to: int | None = None, *, fit: bool = False) -> GroupEntry:
        """Take no more messages, and have a member lead that has all of them: `to`, or the first
        one that does, of those that would be no bad leaders where one of them is to be `fit`.
        Raises `ChangeRefused` if there is none, and as `Agent.hand_over`."""
        self.hands_over = True
        try:
            self.before_hand_over()
            chosen = await self._caught_up(to, self._log.whole_end(), fit=fit)
            op = f"hand over {self._agent.me.incarnation}.{self.epoch} to {chosen}"
            return await self._agent.hand_over(epoch=self.epoch, to=chosen, op=op)
        except BaseException:
            self.hands_over = False  # it leads on, as far as it knows
            raise

    async def _caught_up(self, to: int | None, end: int, *, fit: bool) -> int:
        members = [one for one in sorted(self.view.known.in_sync) if one != self.view.me]
        if to is not None and to not in members:
            raise ChangeRefused(f"replica {to} is not in sync: {members or 'nobody else'} is")
        good = self._fit_members()
        if to is not None and to not in good and good:
            raise ChangeRefused(
                f"replica {to} would be a bad leader, or has no link (its log says why); {good}"
                " would not"
            )
        rest = [] if fit else [one for one in members if one not in good]
        wanted = [*good, *rest] if to is None else [to]
        with trio.move_on_after(HAND_OVER_S):
            while linked := [one for one in wanted if one in self._followers]:
                for one in linked:
                    if self._followers[one].received >= end:
                        return one
                await trio.sleep(HAND_OVER_LOOK_S)
        if not members:
            raise ChangeRefused("no other replica is in sync")
        raise ChangeRefused(f"no member of {members} has all of the log up to {end}")

    async def run(self) -> None:
        """Keep the in-sync set until another one leads; then `is_over` is true."""
        while not self._is_over:
            entry, changed = self._agent.entry, self._agent.changed
            if entry is not None:
                self._heard(entry)
            await self._keep_set()
            with trio.move_on_after(LOOK_S):
                await changed.wait()

    def _heard(self, entry: GroupEntry) -> None:
        if not self.view.read(entry):
            self._is_over = True
        else:
            self._raise_confirm()

    def own_end_rose(self) -> None:
        """More of our own log was written, or flushed; or somebody is waited for no more."""
        if not self._is_over:
            self._raise_confirm()

    def _own_end(self) -> int:
        policy = self.view.known.policy
        return policy.held(written=self._log.whole_end(), flushed=self._log.flushed.value)

    def _raise_confirm(self) -> None:
        self.confirm.advance(self.view.raise_confirm(self._own_end()))

    # --- the in-sync set

    async def _keep_set(self) -> None:
        """Ask for one change, if one is due, and again for one whose answer was lost (R3)."""
        proposal = self.view.pending or self._membership.due(self._own_end(), trio.current_time())
        self.own_end_rose()  # one that was joining may have been given up
        if proposal is None:
            return
        members = ",".join(f"{one}:{life}" for one, life in sorted(proposal.in_sync.items()))
        me = self._agent.me
        op = f"{me.number}.{me.incarnation} {proposal.epoch}.{proposal.version} {members}"
        try:
            self._heard(await self._agent.alter(proposal, op=op))
        except Superseded:
            pass  # the agent hears of the newer version
        except ChangeRefused as exc:
            self.view.refused(proposal)
            self._world.log.info("leader.change_refused", reason=str(exc))
        except (RemotingError, ReplicationError) as exc:
            self._world.log.info("leader.change_unknown", error=str(exc))

    # --- followers

    async def serve(self, link: NativeLink, first: Frame) -> None:
        """One follower, from its HELLO until either side ends it."""
        try:
            hello, cut = self._judge(first)
            cut = await self._before_filler(hello.replica, cut)
            compared, crc = self._compared(hello.replica, cut)
        except LinkRefused as exc:
            number = first.content.replica if isinstance(first.content, Hello) else None
            key = number if number in self.view.known.replicas else None
            if self._refused.get(key) != str(exc):  # it comes back with the same twice a second
                self._refused[key] = str(exc)
                self._world.log.warning("leader.follower_refused", peer=link.peer, reason=str(exc))
            await link.say(self.epoch, Reject(why=str(exc), leader=self.view.me))
            return
        me, log = self._agent.me, self._log
        await link.say(
            self.epoch,
            Welcome(
                leader=me.number,
                incarnation=me.incarnation,
                history=tuple((one.number, one.start) for one in self.history),
                end=log.whole_end(),
                first=log.min_offset,
                confirm=self.confirm.value,
                cut=cut,
                compared=compared,
                crc=crc,
            ),
        )
        follower = Served(link, hello, cut)
        if (older := self._followers.get(hello.replica)) is not None:
            # One of the two is late, and ends soon: a follower whose only link is ended comes anew.
            older.link.end("its follower came on another connection")
        self._followers[hello.replica] = follower
        self._refused.pop(hello.replica, None)
        self._membership.came(hello.replica)
        self.own_end_rose()
        self._world.log.info(
            "leader.follower_joined", replica=hello.replica, cut=cut, end=hello.end
        )
        try:
            await link.run(
                partial(self._read, link, follower),
                partial(self._send, link, follower),
                partial(link.beat, self.epoch, self._beat),
                is_awaited=lambda: hello.replica in self.view.known.in_sync,
            )
        finally:
            if self._followers.get(hello.replica) is follower:
                del self._followers[hello.replica]
                self._membership.left(hello.replica)
                self.own_end_rose()
            self._world.log.info(
                "leader.follower_lost",
                replica=hello.replica,
                reason=link.ended_by or "this replica leads no more",
            )

    def _judge(self, first: Frame) -> tuple[Hello, int]:
        """A follower, and up to where its log is ours. Raises `LinkRefused`."""
        hello, log, me = first.content, self._log, self._agent.me
        if not isinstance(hello, Hello):
            raise LinkRefused("the first frame has to be a HELLO")
        if first.epoch != self.epoch or hello.promised > self.epoch:
            raise LinkRefused(
                f"it asks for epoch {first.epoch} and has promised {hello.promised}, this is"
                f" {self.epoch}"
            )
        if hello.cluster != self._cluster:
            raise LinkRefused(
                f"it is of cluster {hello.cluster!r}, and this one of {self._cluster!r}"
                " (brokerClusterName)"
            )
        known = self.view.known.replicas.get(hello.replica)
        if hello.group != me.group or known is None or known.uuid != hello.uuid:
            raise LinkRefused(
                f"replica {hello.replica} of group {hello.group!r} with directory {hello.uuid} is"
                " not registered"
            )
        if not self.view.known.is_registered(hello.replica, hello.incarnation):
            raise LinkRefused(f"life {hello.incarnation} of it is not the registered one")
        if hello.segment != log.segment_size:
            raise LinkRefused(
                f"its log has files of {hello.segment} bytes, ours of {log.segment_size}"
                " (mappedFileSizeCommitLog): they have to be equal"
            )
        try:
            history = check(tuple(Epoch(*one) for one in hello.history), hello.end)
        except HistoryRefused as exc:
            raise LinkRefused(str(exc)) from exc
        if hello.end == hello.first:
            return hello, log.min_offset
        cut = common_end(history, hello.end, self.history, log.whole_end())
        if cut is not None and cut < log.min_offset:
            raise LinkRefused(
                f"reseed: our log is the same up to {cut}, and begins at {log.min_offset} now:"
                " start it with an empty directory, which gets everything that is kept"
            )
        if cut is None:
            raise LinkRefused(
                f"reseed: its log shares no epoch with ours, which begins at {log.min_offset}"
            )
        return hello, cut

    async def _before_filler(self, replica: int, cut: int) -> int:
        """Whoever is elected at the end of a file may have to fill it, where the former leader put
        a smaller record that nobody else got: once that one has found other bytes there."""
        log = self._log
        if replica in self._doubts and may_be_filled(self.history, cut, cut, log.segment_size):
            start = next(one.start for one in self.history if one.start >= cut)
            if start not in self._fillers:  # who asked may not wait for that, and comes again
                try:
                    self._fillers[start] = await log.filler_before(start)
                except OSError:
                    return cut  # whose bytes are read next, and that says it
            return min(cut, self._fillers[start])
        return cut

    def _compared(self, replica: int, cut: int) -> tuple[int, int]:
        """From where on a follower's log has to be ours up to `cut`, and the CRC. Raises
        `LinkRefused`."""
        log = self._log
        start = max(log.min_offset, (cut - 1) - (cut - 1) % log.segment_size, cut - COMPARED_MAX)
        try:
            return start, zlib.crc32(log.read(start, cut - start)) if start < cut else 0
        except OSError as exc:
            refusal = f"it cannot read its log at {start}: {exc.strerror}"
            self._doubts[replica] = Reject(why=refusal, first=start)
            raise LinkRefused(refusal) from exc

    async def _read(self, link: NativeLink, follower: Served) -> None:
        hello = follower.hello
        while (frame := await link.next()) is not None:
            if frame.epoch != self.epoch:
                raise RemoteProtocolError(f"a frame of epoch {frame.epoch}, not {self.epoch}")
            match frame.content:
                case Ack(received, durable, incarnation):
                    if received > follower.position or incarnation != hello.incarnation:
                        raise RemoteProtocolError(
                            f"replica {hello.replica} acknowledges {received} in life"
                            f" {incarnation}, and was sent {follower.position} in"
                            f" {hello.incarnation}"
                        )
                    policy = self.view.known.policy
                    end = policy.held(written=received, flushed=min(received, durable))
                    follower.received = max(follower.received, received)
                    follower.acknowledged = max(follower.acknowledged, end)
                    follower.moved.set()
                    follower.moved = trio.Event()
                    self.view.acknowledged(hello.replica, incarnation, end)
                    doubt = self._doubts.get(hello.replica)
                    if doubt is not None and received > doubt.first:
                        del self._doubts[hello.replica]
                    self._raise_confirm()
                case Fenced(promised):
                    if promised > self.epoch and not self._is_over:
                        self._world.log.warning("leader.fenced", promised=promised)
                        self._is_over = True
                case Beat(_, _, is_unfit):
                    follower.is_unfit = is_unfit
                case Reject() as doubt:
                    self.doubted = doubt.first
                    if self._doubts.get(hello.replica) != doubt:  # it comes back with the same
                        self._doubts[hello.replica] = doubt
                        self._world.log.warning(
                            "leader.doubted",
                            replica=hello.replica,
                            offset=doubt.first,
                            reason=doubt.why,
                        )
                case other:
                    raise RemoteProtocolError(f"a follower sends no {type(other).__name__}")

    async def _send(self, link: NativeLink, follower: Served) -> None:
        log = self._log
        while True:
            await log.written.wait_above(follower.position)
            while follower.position - max(follower.received, follower.start) > WINDOW:
                await follower.moved.wait()
            if follower.position < log.min_offset:
                raise RemoteProtocolError(
                    f"it needs {follower.position}, which has expired: our log begins at"
                    f" {log.min_offset} now; start it with an empty directory"
                )
            start = follower.position
            left = min(
                self._end_of_epoch(start) - start, log.segment_size - start % log.segment_size
            )
            if self._is_far_behind(follower):
                await self._send_file(link, follower, min(BODY_MAX, left))
                continue
            size = min(LIVE_BODY, left)
            body = log.read_cached(start, size)
            if body is None:
                with log.pinned(start) as (file, at):
                    body = await self._world.offload(file.read_at, at, size)
            follower.position += len(body)
            await link.send(encode(self.epoch, Data(start, self.confirm.value, body)))

    def _is_far_behind(self, follower: Served) -> bool:
        """Whether it catches up and nobody waits for that: producers come first."""
        is_behind = self._log.written.value - follower.position > WINDOW
        is_member = follower.hello.replica in self.view.known.in_sync
        return is_behind and not is_member and self.view.has_enough()

    async def _send_file(self, link: NativeLink, follower: Served, size: int) -> None:
        await self._catch_up.wait(size)
        start = follower.position
        with self._log.pinned(start) as (file, at):
            head = encode_data_head(self.epoch, start, self.confirm.value, size)
            follower.position += size
            await link.send_file(head, file, at, size)

    def _end_of_epoch(self, position: int) -> int:
        """A frame holds bytes of one epoch: a follower notes each as it begins."""
        later = [one.start for one in self.history if one.start > position]
        return min(later, default=self._log.written.value)

    def _beat(self) -> Beat:
        return Beat(self._log.whole_end(), self.confirm.value, bool(self._agent.unfit()))
