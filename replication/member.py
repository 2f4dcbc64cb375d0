"""A replica of a group with failover: follows, leads, and changes from one to the other.

The only task here owns the role. The register decides it, by way of the agent; a change ends all
activities of the former role before the next one begins (replication.md 7.10).
"""

from collections.abc import Callable
from typing import Final

import trio

from rocketbed.remoting.errors import RemotingError
from rocketbed.replication.agent import Agent
from rocketbed.replication.api import EpochLog
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.epoch_file import DISK_S, EpochFile
from rocketbed.replication.epochs import Epoch, begun, cut_to
from rocketbed.replication.errors import NoRoom, ReplicationError
from rocketbed.replication.follower import Follower
from rocketbed.replication.kept_file import KeptFileUnwritable
from rocketbed.replication.leader import Leader
from rocketbed.replication.native_link import LOST, NativeLink
from rocketbed.replication.pace import Seldom
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.ha_native import Reject
from rocketbed.world.api import Stream, World

HELLO_S: Final = 3.0
ELECTED_S: Final = 0.5
"""Time for us to learn that we lead, and to write the marker, after a follower has learned it."""
AGAIN_S: Final = 0.5
"""Pause between two requests for a higher epoch."""
FENCE_S: Final = 0.05
"""Time to tell a former leader that its epoch is over."""
CONFIRM_S: Final = 1.0
"""Interval of writing down the confirm offset; an older one will do."""


class Member:
    """Role of a replica. `run` continues until cancelled, or until its disk fails."""

    def __init__(
        self,
        world: World,
        log: EpochLog,
        agent: Agent,
        file: EpochFile,
        *,
        cluster: str,
        catch_up_rate: int,
        confirm: Watermark,
    ) -> None:
        """`file` is loaded. `confirm` rises to what is confirmed, as far as this replica knows and
        has it. `catch_up_rate` is that of `Leader`."""
        self._world = world
        self._log = log
        self._agent = agent
        self._file = file
        self._cluster = cluster
        self._catch_up_rate = catch_up_rate
        self.leader: Leader | None = None
        """Set while this replica leads."""
        self.follower: Follower | None = None
        """Set while it follows."""
        self.confirm = confirm
        self.on_role: Callable[[], None] = lambda: None
        """Called when `leader` or `follower` has changed, before any action of that role, and when
        the former role is over, before the log is touched again."""
        self._history_lacks = False
        """True if the history on disk may lack epochs that the log has."""
        self._leads = trio.Event()
        """Set, and replaced, when this replica begins to lead."""
        self._links: dict[trio.CancelScope, None] = {}
        """Of followers that the leader here serves."""
        log.written.subscribe(self._on_own_end)
        log.flushed.subscribe(self._on_own_end)

    def _on_own_end(self, _: int) -> None:
        if self.leader is not None:
            self.leader.own_end_rose()
        if self.follower is not None:
            self.follower.own_end_rose()

    async def run(self) -> None:
        """Play the roles. Raises `ReplicaExpelled`, `OSError`, and the errors of the log."""
        await self._recover()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._agent.run)
            nursery.start_soon(self._keep_role)
            nursery.start_soon(self._record_confirm)

    async def _recover(self) -> None:
        """Finish a cut that was begun, and find epochs that are newer than the file."""
        log, file = self._log, self._file
        if (cut := file.state.cut_to) is not None:
            await file.cut(log, cut)
        end = log.whole_end()
        history = cut_to(file.state.history, end)
        since = history[-1].start + 1 if history else log.min_offset
        for number, start in await log.epochs(since):
            history = begun(history, Epoch(number, start))
        # Records from before the group had epochs; unknown if the log begins later.
        begins_before = history[0].start > log.min_offset == 0 if history else end > log.min_offset
        if begins_before:
            history = (Epoch(0, 0), *history)
        # After a power loss the log may be shorter than what we knew to be confirmed, and had.
        confirm = min(file.state.confirm, end)
        if (history, confirm) != (file.state.history, file.state.confirm):
            await file.save(history=history, confirm=confirm)

    async def _keep_role(self) -> None:
        while True:
            entry, changed = self._agent.entry, self._agent.changed
            if entry is None or entry.leader is None or entry.epoch < self._file.state.promised:
                if entry is not None and entry.leader is not None:
                    self._world.log.error(
                        "member.older_register",
                        epoch=entry.epoch,
                        promised=self._file.state.promised,
                        advice="the register is older than this replica: bring a newer copy back",
                    )
                await changed.wait()
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._play, entry)
                while self._is_still(entry):
                    changed = self._agent.changed
                    await changed.wait()
                await self._fence()
                nursery.cancel_scope.cancel()

    def _is_still(self, entry: GroupEntry) -> bool:
        now = self._agent.entry
        return now is not None and (now.epoch, now.leader) == (entry.epoch, entry.leader)

    async def _fence(self) -> None:
        """Tell the leader that we followed that its epoch is over: we may reach it where no
        controller does."""
        if self.follower is not None:
            with trio.move_on_after(FENCE_S):
                await self.follower.fence()

    async def _play(self, entry: GroupEntry) -> None:
        """Play one role, until cancelled."""
        led, ask = self._agent.is_leader(), self._stand_again
        try:
            await self._complete_history(waits=not led)
            if led:
                await self._lead(entry)
            elif entry.leader != self._agent.me.number:
                await self._follow(entry)
        except NoRoom as exc:
            ask, self._history_lacks = self._step_down, True
            self._world.log.warning("member.cannot_lead", epoch=entry.epoch, reason=str(exc))
        finally:
            if self.follower is not None and self.follower.lacked_room:
                self._history_lacks = True
            if self.leader is not None:
                self._world.log.info("member.leads_no_more", epoch=entry.epoch)
            self.leader = self.follower = None
            self.on_role()
            for scope in list(self._links):
                scope.cancel()
        last_error = ""
        while led and self._is_still(entry):
            changed = self._agent.changed
            try:
                await ask(entry)
            except (RemotingError, ReplicationError) as exc:
                if last_error != str(exc):
                    last_error = str(exc)
                    self._world.log.info(
                        "member.cannot_lead_again", epoch=entry.epoch, reason=last_error
                    )
            with trio.move_on_after(AGAIN_S):
                await changed.wait()

    async def _complete_history(self, *, waits: bool) -> None:
        """Complete `epoch.rb`, if for lack of room a marker may be in the log only."""
        while self._history_lacks:
            try:
                await self._recover()
                self._history_lacks = False
            except NoRoom:
                if not waits:
                    raise
                await trio.sleep(AGAIN_S)

    async def _stand_again(self, entry: GroupEntry) -> None:
        """Request a higher epoch if we are named and cannot lead in this one any more: another
        replica said that it is over, and the register does not. Changes nothing if it is."""
        me = self._agent.me
        op = f"again {me.number}.{me.incarnation} {entry.epoch}"
        await self._agent.hand_over(epoch=entry.epoch, to=me.number, op=op)

    async def _step_down(self, entry: GroupEntry) -> None:
        """Have a leader elected, perhaps this replica, since we have no room to begin an epoch."""
        await trio.sleep(AGAIN_S)  # the other disks may be full as well
        me = self._agent.me
        await self._agent.leave(op=f"no room {me.number}.{me.incarnation} {entry.epoch}")

    async def _lead(self, entry: GroupEntry) -> None:
        """Lead. The order is the argument: promised before the end of the log is read, the marker
        on disk before any follower is served (replication.md 7.7, 4)."""
        log, file = self._log, self._file
        if file.state.promised >= entry.epoch:
            return  # led or refused before
        await file.save(promised=entry.epoch, group=entry.uid)
        with trio.fail_after(DISK_S, shield=True):  # or the history does not match the log
            if log.written.value > (end := log.whole_end()) or file.state.cut_to is not None:
                await file.cut(log, end)
            start = await log.begin_epoch(entry.epoch, self._agent.me.number)
            history = begun(file.state.history, Epoch(entry.epoch, start))
            await file.save(history=history, is_shared=True)
        leader = Leader(
            self._world,
            log,
            self._agent,
            entry,
            file.state.history,
            cluster=self._cluster,
            catch_up_rate=self._catch_up_rate,
        )
        leader.confirm.subscribe(self.confirm.advance)
        self.confirm.advance(leader.confirm.value)
        self.leader = leader
        self._world.log.info("member.leads", epoch=entry.epoch, start=start)
        self.on_role()
        self._leads.set()
        self._leads = trio.Event()
        await leader.run()

    async def _follow(self, entry: GroupEntry) -> None:
        self._world.log.info("member.follows", epoch=entry.epoch, leader=entry.leader)
        self.follower = Follower(
            self._world,
            self._log,
            self._agent,
            self._file,
            entry,
            cluster=self._cluster,
            confirm=self.confirm,
        )
        self.on_role()
        await self.follower.run()

    async def serve(self, stream: Stream, received: bytes = b"") -> None:
        """Serve a peer that connected, with its first bytes, until either side ends it."""
        link = NativeLink(self._world, stream, received)
        with trio.CancelScope() as scope:
            try:
                frame = await link.first(HELLO_S)
                if frame is None:
                    return
                leader = await self._leader_of(frame.epoch)
                if leader is None:
                    await link.say(frame.epoch, Reject(why="it does not lead"))
                    return
                self._links[scope] = None
                await leader.serve(link, frame)
            except (*LOST, RemoteProtocolError) as exc:
                self._world.log.info("member.link_lost", peer=link.peer, error=str(exc))
            finally:
                self._links.pop(scope, None)
                with trio.move_on_after(1, shield=True):
                    await link.aclose()

    async def _leader_of(self, epoch: int) -> Leader | None:
        """Return the leader here, once it is one of that epoch or a later one: a follower may learn
        of an election before us."""
        with trio.move_on_after(ELECTED_S):
            while self.leader is None or self.leader.epoch < epoch:
                await self._leads.wait()
        leader = self.leader
        return None if leader is None or leader.is_over else leader

    async def _record_confirm(self) -> None:
        """Record the confirm offset, so that a cut below it, after a restart too, is recognized."""
        saying = Seldom()
        while True:
            await self.confirm.wait_above(self._file.state.confirm)
            try:
                await self._file.save(confirm=self.confirm.value)
            except (NoRoom, KeptFileUnwritable) as exc:
                if saying.is_due():
                    self._world.log.warning("member.confirm_not_noted", error=str(exc))
            await trio.sleep(CONFIRM_S)
