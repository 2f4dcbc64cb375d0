"""The leader of one epoch: sends followers the log, confirms, and maintains the in-sync set.

`insync.py` decides what it may confirm and whom it may add or leave out; the agent asks the
register. There is one object per epoch: a replica that leads again has another one (replication.md
7.4, 7.5).
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
"""Interval of the checks of the in-sync set."""
HAND_OVER_S: Final = 1.0
"""Time for a member to get all of the log, once nothing is added to it."""
HAND_OVER_LOOK_S: Final = 0.002
LIVE_BODY: Final = 256 * 1024
ALONE_S: Final = 3.0
"""Time after which an unreachable leader makes way for a reachable one."""
WINDOW: Final = 8 * 1024 * 1024
"""Most bytes on their way to a follower that it has not acknowledged."""


class Leader:
    """Leader of one epoch. `run` ends when the epoch is over for this replica."""

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
        """`entry` names us; `history` ends with the epoch's marker, which is durable. Replicas that
        lag far behind get `catch_up_rate` bytes a second together, 0 for no limit."""
        self._world = world
        self._log = log
        self._agent = agent
        self._cluster = cluster
        self._catch_up = Pace(catch_up_rate)
        self.history = history
        self.epoch = entry.epoch
        self.view = InSyncView(agent.me.number, history[-1].start, entry)
        self.confirm = Watermark()
        """End of what is confirmed. Invariant: equals the view's."""
        self._followers: dict[int, Served] = {}
        self._refused: dict[int | None, str] = {}
        """Last refusal of each, until it is served; None stands for all unregistered ones."""
        self._membership = Membership(self.view, self._followers)
        self.doubted: int | None = None
        """Offset at which a follower found our log bad, bytes, until it was checked."""
        self._doubts: dict[int, Reject] = {}
        """Last such report of each follower, until it has acknowledged more."""
        self._fillers: dict[int, int] = {}
        """Start of the filler before an epoch's start, if it was searched."""
        self._is_over = False
        self._alone_since = world.clock.monotonic()
        """Last time that a required follower was present, as of the last call of
        `is_in_the_way`."""
        self.hands_over = False
        """True while another replica is made to lead: no messages are accepted meanwhile."""
        self.before_hand_over: Callable[[], None] = lambda: None
        """Called once no more messages are accepted: to put pending changes into the log."""
        self.own_end_rose()

    @property
    def is_over(self) -> bool:
        """True if another replica leads, as far as is known."""
        return self._is_over

    def may_append(self) -> bool:
        """True if producers may be served: enough are in sync, and the lease holds or every member
        of the in-sync set still acknowledges in this epoch, which it would not under a later
        leader."""
        return self.is_acting() and not self.hands_over and self.view.has_enough()

    def is_acting(self) -> bool:
        """True if no other replica can lead yet, by the lease, or can have confirmed anything."""
        return not self._is_over and (self._agent.lease_s() > 0 or self._is_followed())

    def _is_followed(self) -> bool:
        followers = [follower for follower in self.view.need() if follower[0] != self.view.me]
        return bool(followers) and all(
            number in self._followers and self._followers[number].hello.incarnation == incarnation
            for number, incarnation in followers
        )

    def is_outdone(self) -> bool:
        """True if this replica would be a bad leader, and some member reports that it would not."""
        return bool(self._agent.unfit()) and bool(self._fit_members())

    def _fit_members(self) -> list[int]:
        followers = self._followers
        members = sorted(self.view.entry.in_sync)
        return [
            member for member in members if member in followers and not followers[member].is_unfit
        ]

    def is_in_the_way(self) -> bool:
        """True if nothing can be confirmed here, another present replica could lead, and a fault of
        our log or links may be why it does not follow."""
        now = self._world.clock.monotonic()
        if self._followers or self.view.has_enough() or not self._agent.rival:
            self._alone_since = now
        is_bad = bool(self._doubts or self._agent.unfit()) or now > self._alone_since + ALONE_S
        return is_bad and not self.view.has_enough() and self._agent.rival

    async def hand_over(self, to: int | None = None, *, fit: bool = False) -> GroupEntry:
        """Accept no more messages, and make a member lead that has all of them: `to`, or the first
        such member, of those that would be good leaders if `fit`. Raises `ChangeRefused` if there
        is none, and as `Agent.hand_over`."""
        self.hands_over = True
        try:
            self.before_hand_over()
            chosen = await self._caught_up(to, self._log.whole_end(), fit=fit)
            op = f"hand over {self._agent.me.incarnation}.{self.epoch} to {chosen}"
            return await self._agent.hand_over(epoch=self.epoch, to=chosen, op=op)
        except BaseException:
            self.hands_over = False  # it still leads, as far as it knows
            raise

    async def _caught_up(self, to: int | None, end: int, *, fit: bool) -> int:
        members = [member for member in sorted(self.view.entry.in_sync) if member != self.view.me]
        if to is not None and to not in members:
            raise ChangeRefused(f"replica {to} is not in sync: {members or 'nobody else'} is")
        good = self._fit_members()
        if to is not None and to not in good and good:
            raise ChangeRefused(
                f"replica {to} would be a bad leader, or has no link (its log says why); {good}"
                " would not"
            )
        unfit = [] if fit else [member for member in members if member not in good]
        candidates = [*good, *unfit] if to is None else [to]
        with trio.move_on_after(HAND_OVER_S):
            while linked := [member for member in candidates if member in self._followers]:
                for member in linked:
                    if self._followers[member].received >= end:
                        return member
                await trio.sleep(HAND_OVER_LOOK_S)
        if not members:
            raise ChangeRefused("no other replica is in sync")
        raise ChangeRefused(f"no member of {members} has all of the log up to {end}")

    async def run(self) -> None:
        """Maintain the in-sync set until another replica leads; then `is_over` is true."""
        while not self._is_over:
            entry, changed = self._agent.entry, self._agent.changed
            if entry is not None:
                self._take_entry(entry)
            await self._keep_set()
            with trio.move_on_after(LOOK_S):
                await changed.wait()

    def _take_entry(self, entry: GroupEntry) -> None:
        if not self.view.read(entry):
            self._is_over = True
        else:
            self._raise_confirm()

    def own_end_rose(self) -> None:
        """Raise the confirm offset: more of our own log was written, or flushed; or a replica is no
        longer needed."""
        if not self._is_over:
            self._raise_confirm()

    def _own_end(self) -> int:
        policy = self.view.entry.policy
        return policy.held(written=self._log.whole_end(), flushed=self._log.flushed.value)

    def _raise_confirm(self) -> None:
        self.confirm.advance(self.view.raise_confirm(self._own_end()))

    # --- the in-sync set

    async def _keep_set(self) -> None:
        """Request one change, if one is needed, and again if its answer was lost (R3)."""
        proposal = self.view.pending or self._membership.next_change(
            self._own_end(), trio.current_time()
        )
        self.own_end_rose()  # a joining replica may have been given up
        if proposal is None:
            return
        members = ",".join(f"{number}:{life}" for number, life in sorted(proposal.in_sync.items()))
        me = self._agent.me
        op = f"{me.number}.{me.incarnation} {proposal.epoch}.{proposal.version} {members}"
        try:
            self._take_entry(await self._agent.alter(proposal, op=op))
        except Superseded:
            pass  # the agent gets the newer version
        except ChangeRefused as exc:
            self.view.refused(proposal)
            self._world.log.info("leader.change_refused", reason=str(exc))
        except (RemotingError, ReplicationError) as exc:
            self._world.log.info("leader.change_unknown", error=str(exc))

    # --- followers

    async def serve(self, link: NativeLink, first: Frame) -> None:
        """Serve one follower, from its HELLO until either side ends it."""
        try:
            hello, cut = self._judge(first)
            cut = await self._before_filler(hello.replica, cut)
            compared, crc = self._compared(hello.replica, cut)
        except LinkRefused as exc:
            number = first.content.replica if isinstance(first.content, Hello) else None
            key = number if number in self.view.entry.replicas else None
            if self._refused.get(key) != str(exc):  # it repeats the same request twice a second
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
                history=tuple((epoch.number, epoch.start) for epoch in self.history),
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
            # One of the two is stale, and ends soon: a follower whose only link is ended
            # reconnects.
            older.link.end("its follower came on another connection")
        self._followers[hello.replica] = follower
        self._refused.pop(hello.replica, None)
        self._membership.link_opened(hello.replica)
        self.own_end_rose()
        self._world.log.info(
            "leader.follower_joined", replica=hello.replica, cut=cut, end=hello.end
        )
        try:
            await link.run(
                partial(self._read, link, follower),
                partial(self._send, link, follower),
                partial(link.beat, self.epoch, self._beat),
                is_awaited=lambda: hello.replica in self.view.entry.in_sync,
            )
        finally:
            if self._followers.get(hello.replica) is follower:
                del self._followers[hello.replica]
                self._membership.link_closed(hello.replica)
                self.own_end_rose()
            self._world.log.info(
                "leader.follower_lost",
                replica=hello.replica,
                reason=link.ended_by or "this replica leads no more",
            )

    def _judge(self, first: Frame) -> tuple[Hello, int]:
        """Return a follower's HELLO, and the end of the common part. Raises `LinkRefused`."""
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
        registered = self.view.entry.replicas.get(hello.replica)
        if hello.group != me.group or registered is None or registered.uuid != hello.uuid:
            raise LinkRefused(
                f"replica {hello.replica} of group {hello.group!r} with directory {hello.uuid} is"
                " not registered"
            )
        if not self.view.entry.is_registered(hello.replica, hello.incarnation):
            raise LinkRefused(f"life {hello.incarnation} of it is not the registered one")
        if hello.segment != log.segment_size:
            raise LinkRefused(
                f"its log has files of {hello.segment} bytes, ours of {log.segment_size}"
                " (mappedFileSizeCommitLog): they have to be equal"
            )
        try:
            history = check(tuple(Epoch(*pair) for pair in hello.history), hello.end)
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
        """Return the start of a filler before `cut`, if a follower found other bytes there: a
        leader elected at the end of a file may have to fill it, where its predecessor put a smaller
        record that no other replica got."""
        log = self._log
        if replica in self._doubts and may_be_filled(self.history, cut, cut, log.segment_size):
            start = next(epoch.start for epoch in self.history if epoch.start >= cut)
            # the follower may not wait for that, and repeats its request
            if start not in self._fillers:
                try:
                    self._fillers[start] = await log.filler_before(start)
                except OSError:
                    return cut  # these bytes are read next, which reports the error
            return min(cut, self._fillers[start])
        return cut

    def _compared(self, replica: int, cut: int) -> tuple[int, int]:
        """Return the start of the range up to `cut` in which a follower's log has to equal ours,
        and its CRC. Raises `LinkRefused`."""
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
                    policy = self.view.entry.policy
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
                    if self._doubts.get(hello.replica) != doubt:  # it repeats the same report
                        self._doubts[hello.replica] = doubt
                        self._world.log.warning(
                            "leader.doubted",
                            replica=hello.replica,
                            offset=doubt.first,
                            reason=doubt.why,
                        )
                case content:
                    raise RemoteProtocolError(f"a follower sends no {type(content).__name__}")

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
            remaining = min(
                self._end_of_epoch(start) - start, log.segment_size - start % log.segment_size
            )
            if self._is_far_behind(follower):
                await self._send_file(link, follower, min(BODY_MAX, remaining))
                continue
            size = min(LIVE_BODY, remaining)
            body = log.read_cached(start, size)
            if body is None:
                with log.pinned(start) as (file, at):
                    body = await self._world.offload(file.read_at, at, size)
            follower.position += len(body)
            await link.send(encode(self.epoch, Data(start, self.confirm.value, body)))

    def _is_far_behind(self, follower: Served) -> bool:
        """True if it catches up and no producer waits for it: producers have priority."""
        is_behind = self._log.written.value - follower.position > WINDOW
        is_member = follower.hello.replica in self.view.entry.in_sync
        return is_behind and not is_member and self.view.has_enough()

    async def _send_file(self, link: NativeLink, follower: Served, size: int) -> None:
        await self._catch_up.wait(size)
        start = follower.position
        with self._log.pinned(start) as (file, at):
            head = encode_data_head(self.epoch, start, self.confirm.value, size)
            follower.position += size
            await link.send_file(head, file, at, size)

    def _end_of_epoch(self, position: int) -> int:
        """Return the end of the epoch: a frame holds bytes of one epoch, as a follower records each
        when it begins."""
        later = [epoch.start for epoch in self.history if epoch.start > position]
        return min(later, default=self._log.written.value)

    def _beat(self) -> Beat:
        return Beat(self._log.whole_end(), self.confirm.value, bool(self._agent.unfit()))
