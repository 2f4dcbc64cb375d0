"""A node in a group with failover: its identity, its line to the controllers, and the effects of a
role.

The role is decided elsewhere (`replication.member`); here it becomes that of broker, store and
routes. A node begins as a follower without a leader. It leads, as broker 0, once its epoch's marker
is on disk, and gives all of that back before it follows the next leader's log.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import orjson
import trio

from rocketbed.node.broker.broker import Broker
from rocketbed.node.broker.registration import Registration
from rocketbed.node.config.changes import take_role
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.only_leader import OnlyLeader
from rocketbed.node.replication import Replication
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.client import parse_address
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.replication.agent import Agent, Identity
from rocketbed.replication.entry import Policy
from rocketbed.replication.epoch_file import EpochFile
from rocketbed.replication.errors import ChangeRefused, NoRoom, ReplicationError
from rocketbed.replication.identity import ReplicaFile, ReplicaFileDamaged
from rocketbed.replication.member import Member
from rocketbed.replication.pace import Seldom
from rocketbed.replication.register.form import dumped
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer
from rocketbed.wire.headers_failover import HandOverRequest
from rocketbed.world.api import World

FIT_LOOK_S: Final = 0.5
"""Pause between two checks whether a replica can store messages and read those that it has."""
GIVE_UP_S: Final = 30.0
"""Pause between two attempts to give up the lead."""
HAND_OVER_S: Final = 2.0
"""Time that a stopping leader has to make another replica lead."""
LEARNS: Final = "queues of a topic that was deleted are being destroyed: ask again"


class Replica:
    """State of a replica as its directory records it, and how far its log is confirmed."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        """Read the record of epochs. Raises `EpochFileDamaged`."""
        root = config.store.root
        self._world = world
        self._config = config
        self.policy = Policy.FSYNC if config.store.sync_flush else Policy.MEMORY
        self.file = EpochFile(world, root)
        self.file.load()
        self.identity = ReplicaFile(world, root)
        self.confirmed = Watermark(self.file.state.confirm)
        """Offset below which all of this replica's log is confirmed, as far as it knows."""
        self.lossless = False
        """True if it holds all that its former incarnations acknowledged."""

    async def begin(self, store: MessageStore) -> None:
        """Begin an incarnation in a locked directory. Raises `ReplicaFileDamaged`, `OSError`, also
        for lack of room for what is cut off."""
        config = self._config
        self.file.load()
        is_foreign = store.recovery.by_hand or self.identity.was_alone()
        if is_foreign and self.file.state.history:
            # Whatever follows the confirmed part may be another broker's: epochs say nothing of it.
            # It is cut before any leader is followed, and the cut is recorded before the mark of
            # the foreign broker is removed. All replicas cut what that broker acknowledged alike,
            # and keep a copy.
            confirm = min(self.file.state.confirm, store.max_offset)
            if confirm < store.min_offset:
                raise ReplicaFileDamaged(
                    f"nothing is left in {config.store.root} of what its group had confirmed: a"
                    " broker without failover had the directory, and what it deleted goes further."
                    " Start with an empty directory, or begin the group anew with what all have"
                )
            reason = store.recovery.reason or "a node without failover had the directory"
            backup, size = await store.removal.keep_from(confirm)
            self._world.log.warning(
                "failover.foreign_hand", reason=reason, cut_to=confirm, bytes=size, kept=backup
            )
            await self.file.save(cut_to=confirm)
        is_cut = store.max_offset < self.file.state.confirm
        if is_cut:
            self._world.log.error(
                "failover.log_cut", end=store.max_offset, confirmed=self.file.state.confirm
            )
        self.lossless = await self.identity.begin(
            group=config.broker_name,
            number=config.replica,
            policy=self.policy,
            trusts_cache=config.store.trust_page_cache,
            lost=store.lost_bytes or is_cut or (is_foreign and bool(self.file.state.history)),
        )
        self.confirmed.reset(min(self.file.state.confirm, store.max_offset))


class Failover:
    """Service of a node: one member of a group. `run` raises what ends the node."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        replica: Replica,
        *,
        acknowledged: Watermark,
    ) -> None:
        """`acknowledged` rises, while this node leads, to what may be acknowledged."""
        self._world = world
        self._config = config
        self._store = store
        self._replica = replica
        self._acknowledged = acknowledged
        state = replica.identity.state
        me = Identity(
            group=config.broker_name,
            number=config.replica,
            uuid=state.uuid,
            incarnation=state.incarnation,
            address=config.address,
            ha_address=config.ha_address,
            lossless=replica.lossless,
            replicas=config.replicas,
            policy=replica.policy,
            # RocketMQ's directories do not say whose copy they are. A second directory that was a
            # master's is refused, not cut.
            founds=bool(replica.file.state.history)
            or store.max_offset == store.min_offset
            or not store.followed,
        )
        self.agent = Agent(
            world,
            list(config.nameservers),
            me,
            log_end=self._log_end,
            promised=lambda: (replica.file.state.promised, replica.file.state.group),
            unfit=lambda: self._unfit,
            raise_life=replica.identity.raise_life,
        )
        self.member = Member(
            world,
            store.epochs,
            self.agent,
            replica.file,
            cluster=config.cluster_name,
            catch_up_rate=config.catch_up_rate,
            confirm=replica.confirmed,
        )
        self.member.on_role = self._on_role
        self.on_role: list[Callable[[], None]] = []
        """Called when the role has changed."""
        self._leads = False
        self._unfit = ""
        """`MessageStore.unfit`, or the fault of the tables, at the last check."""
        self._role_changed = trio.Event()
        """Set, and replaced, with each role."""

    def attach(self, broker: Broker, replication: Replication, registration: Registration) -> None:
        """Connect the parts of the node; before the ports open."""
        broker.sender.gate = self.refusal
        replication.member = self.member
        # The controller was unreachable, so the nameserver beside it may have lost the route.
        self.agent.on_registered = registration.announce
        registration.epoch = lambda: self.agent.entry.epoch if self.agent.entry else 0
        broker.queries.gate = self._no_leader
        broker.queries.commits = broker.puller.elsewhere = self._no_commits
        broker.puller.gate = broker.queries.reads = self._not_confirmed
        OnlyLeader(self._world, self._no_leader, self._leader_address).guard(broker.handlers)
        broker.handlers.spawned[RequestCode.RB_HAND_OVER] = self._hand_over
        broker.info.failover = self.runtime_info
        self._replication = replication
        assert broker.table_log is not None
        self._tables = broker.table_log
        self.on_role += [broker.role_changed, registration.announce]

    def runtime_info(self) -> dict[str, str]:
        """Return the runtime information of a group: `rbGroup`, this replica's part in words; of a
        leader also the epoch and its start in the log, bytes."""
        leader, entry = self.member.leader, self.agent.entry
        if leader is not None:
            group = leader.view.entry
            members = ", ".join(map(str, sorted(group.in_sync)))
            return {
                "rbGroup": f"epoch {leader.epoch}: leads, lease"
                f" {max(self.agent.lease_s(), 0.0):.1f} s, {len(group.in_sync)} of"
                f" {len(group.replicas)} in sync: {members}",
                "rbEpoch": str(leader.epoch),
                "rbEpochStart": str(leader.view.start),
            }
        if entry is None:
            return {"rbGroup": "no controller heard yet"}
        member = "in sync" if self.agent.is_member() else "not in sync"
        follows = f"follows {entry.leader}" if entry.leader is not None else "nobody leads"
        return {"rbGroup": f"epoch {entry.epoch}: {follows}, {member}"}

    def refusal(self) -> tuple[ResponseCode, str] | None:
        """Return code and remark that refuse a message now; None if it is accepted (replication.md
        7.16)."""
        leader = self.member.leader
        if self._tables.is_learning:
            return ResponseCode.SERVICE_NOT_AVAILABLE, LEARNS
        if leader is not None and leader.may_append():
            return None
        if leader is not None and not leader.view.has_enough():
            group = leader.view.entry
            return ResponseCode.SYSTEM_ERROR, (
                f"in-sync replicas not enough: {len(group.in_sync)} of {group.min_in_sync}"
            )
        return ResponseCode.SERVICE_NOT_AVAILABLE, self._hint()

    def _not_confirmed(self) -> str:
        """Return why messages cannot be read here now; empty if they can."""
        if self._tables.is_learning:
            return LEARNS
        if not self._store.shows_unconfirmed:
            return ""
        return f"this node does not know yet which of its last messages count: {self._hint()}"

    def _no_leader(self) -> str:
        """Return where positions are kept, if not here; empty if they are."""
        leader = self.member.leader
        is_here = leader is not None and leader.is_acting() and not leader.hands_over
        return "" if is_here else self._hint()

    def _no_commits(self) -> str:
        """Return why the next leader might lose a position; empty if it is confirmed soon."""
        leader = self.member.leader
        is_here = leader is not None and leader.may_append() and not self._tables.is_behind
        return "" if is_here else self._hint()

    def _hint(self) -> str:
        """Return the leader, as far as it is known: JSON, for people and programs."""
        epoch = self.agent.entry.epoch if self.agent.entry is not None else 0
        return orjson.dumps({"leader": self._leader_address(), "epoch": epoch}).decode()

    def _leader_address(self) -> str:
        """Return `host:port` of the leader as far as it is known, else the empty string."""
        entry = self.agent.entry
        if entry is None or entry.leader is None or entry.leader not in entry.replicas:
            return ""
        return entry.replicas[entry.leader].address

    def trouble(self) -> str:
        """Return why this replica neither leads nor follows; empty if it does either."""
        leader, follower = self.member.leader, self.member.follower
        if leader is not None:
            refusal = self.refusal()
            return "" if refusal is None else f"it leads and takes no messages: {refusal[1]}"
        if follower is not None and follower.is_linked:
            return ""
        if self.agent.entry is None:
            reason = f": {self.agent.trouble}" if self.agent.trouble else ""
            return f"no controller has taken it in yet (namesrvAddr, rbRegister there){reason}"
        reason = follower.refusal if follower is not None else "the group has no leader"
        lost = f"; its controller: {self.agent.trouble}" if self.agent.trouble else ""
        return f"it follows nobody: {reason or 'no link to the leader yet'}{lost}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Raises `ReplicaExpelled`, `StoreError`, `OSError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.member.run)
            nursery.start_soon(self._forget_loss)
            nursery.start_soon(self._give_up_when_unfit)
            task_status.started()

    async def stop(self) -> None:
        """Make another replica lead, and report the end of this incarnation; before the ports
        close."""
        with trio.move_on_after(HAND_OVER_S):
            try:
                if self.member.leader is not None:
                    await self.member.leader.hand_over()
                    while self.member.leader is not None:
                        await self._role_changed.wait()
                await self.agent.leave(op=f"leave {self._replica.identity.state.incarnation}")
            except (ReplicationError, RemotingError) as exc:
                self._world.log.info("failover.not_handed_over", reason=str(exc))
        with suppress(NoRoom):  # any older one will do
            await self._replica.file.save(confirm=self._replica.confirmed.value)

    async def _hand_over(self, command: Command, _: Connection) -> Command:
        """Answer an operator's request that another replica lead; -1 is the first complete one."""
        header = HandOverRequest.decode(command.raw_fields)
        leader = self.member.leader
        is_ours = leader is not None and header.group == self._config.broker_name
        if leader is None or not is_ours or header.epoch != leader.epoch:
            raise ChangeRefused(
                f"this node does not lead group {header.group!r} in epoch {header.epoch} (any more)"
            )
        entry = await leader.hand_over(None if header.to < 0 else header.to)
        return answer(command, body=dumped(entry))

    def _log_end(self) -> tuple[int, int]:
        history = self._replica.file.state.history
        return (history[-1].number if history else 0, self._store.epochs.whole_end())

    async def _forget_loss(self) -> None:
        """Keep the record of a loss until the register has it."""
        while self.agent.entry is None:
            changed = self.agent.changed
            await changed.wait()
        is_forgotten = False
        while not is_forgotten:
            try:
                await self._replica.identity.clear_loss()
                is_forgotten = True
            except NoRoom as exc:
                self._world.log.warning("failover.loss_not_forgotten", reason=str(exc))
                await trio.sleep(GIVE_UP_S)

    async def _give_up_when_unfit(self) -> None:
        """Make another replica lead if it is fitter."""
        looking, trying = Seldom(), Seldom(GIVE_UP_S)
        while True:
            await trio.sleep(FIT_LOOK_S)
            leader = self.member.leader
            # Any follower may doubt it, and a check reads a whole segment.
            if leader is not None and leader.doubted is not None and looking.is_due():
                doubted, leader.doubted = leader.doubted, None
                await self._store.scrubber.check_at(doubted)
            before, self._unfit = self._unfit, self._tables.trouble or self._store.unfit()
            # On the second check: by then the followers have checked too, and reported.
            is_outdone = leader is not None and bool(before) and leader.is_outdone()
            is_in_the_way = leader is not None and leader.is_in_the_way()
            if leader is None or not (is_outdone or is_in_the_way) or not trying.is_due():
                continue
            self._world.log.warning("failover.unfit", reason=self._unfit or "no follower takes it")
            try:
                if is_outdone:
                    await leader.hand_over(fit=True)
                else:
                    await self.agent.leave(
                        op=f"in the way {self.agent.me.incarnation} {leader.epoch}"
                    )
            except (ReplicationError, RemotingError) as exc:
                self._world.log.warning("failover.not_handed_over", reason=str(exc))

    def _on_role(self) -> None:
        leader, follower = self.member.leader, self.member.follower
        take_role(self._config, leads=leader is not None)
        if leader is not None:
            leader.confirm.subscribe(partial(self._confirmed, leader.epoch))
            leader.before_hand_over = self._tables.put
        metadata = self._replication.metadata
        if metadata is not None:
            metadata.set_master(None)
            if follower is not None and self.agent.entry is not None:
                address = self.agent.entry.replicas[follower.leader].address
                try:
                    metadata.set_master(parse_address(address))
                except ValueError as exc:
                    self._world.log.warning("failover.leader_address_unreadable", error=str(exc))
        if leader is not None or self._leads:
            for callback in self.on_role:
                callback()
        self._leads = leader is not None
        self._role_changed.set()
        self._role_changed = trio.Event()

    def _confirmed(self, epoch: int, end: int) -> None:
        """Acknowledge up to `end` if this epoch still leads: waiting answers were written in it."""
        leader = self.member.leader
        if leader is not None and leader.epoch == epoch:
            self._acknowledged.advance(end)
