"""Bugs of failover groups: truncation, confirmation, counted replicas, elections."""

from typing import Any, Final

from rocketbed.node.store.cut import _lower_mark
from tests.mutation.planted.mutant import mutant, planted, swap

_CUT: Final = "rocketbed.replication.follower:Follower._cut"
_APPEND: Final = "rocketbed.replication.follower:Follower._append"
_LEADER: Final = "rocketbed.replication.leader:Leader.__init__"
_COMPLETE: Final = "rocketbed.replication.insync:InSyncView._is_complete"
_MARKER: Final = "rocketbed.replication.insync:InSyncView.has_marker"
SOAK: Final = "soak-failover"


@planted(
    "M4",
    "no truncation on demotion",
    bug="a deposed leader keeps what it wrote beyond the common part, and follows behind it",
    edit="a follower cuts nothing, and takes of what it is sent only what lies beyond its own end",
    caught_by=(
        "equal-logs",
        "dishonest-ack",
        "inconsistent-offset",
        "lost-write",
        "dense-queue-offsets",
        "acked-before-durable",
    ),
    family="split-brain",
    soak=SOAK,
    targets=(
        _CUT,
        _APPEND,
    ),
)
def _no_truncation() -> None:
    async def keep(self: Any, offset: int) -> None:
        if offset >= self._log.whole_end():
            await cut(self, offset)

    async def take_rest(self: Any, history: Any, offset: int, body: bytes) -> None:
        known_bytes = max(self._log.written.value - offset, 0)
        if known_bytes < len(body):
            await append(self, history, offset + known_bytes, body[known_bytes:])

    cut, append = swap(_CUT, keep), swap(_APPEND, take_rest)


@mutant(
    "M5",
    "truncation not crash-safe",
    "rocketbed.node.store.removal:cut_log",
    bug="a cut only moves positions back: what is not overwritten is valid after a crash (10666)",
    edit="nothing of a cut is put on record, zeroed, dropped or synced",
    caught_by=(
        "truncation-on-disk",
        "recovered-end",
        "equal-logs",
        "inconsistent-offset",
        "store-images",
    ),
    family="split-brain",
    soak=SOAK,
)
async def _positions_only(_original: Any, parts: Any, offset: int, *, record_start: int) -> None:
    log, marks = parts.log, parts.marks
    log.cuts += 1
    if marks.mark.offset > offset:
        await _lower_mark(parts, offset, record_start)
    await marks.update(cut_to=None)
    parts.world.mark("store.cut_done")
    log.written.reset(offset)
    log.flushed.reset(min(log.flushed.value, offset))
    log.cuts += 1


@mutant(
    "M7",
    "confirm offset not capped",
    "rocketbed.replication.member:Member._on_own_end",
    bug="a leader shows what it has, confirmed or not; a failover takes it back (6662, 6665)",
    edit="what readers may see is the end of the leader's own log; producers wait as before",
    caught_by=(
        "vanished-read",
        "nonmonotonic-poll",
        "unseen-message",
        "phantom-write",
        "wrong-reported-offset",
        "early-commit",
        "tables-complete",
        "replicas-equal",
        "equal-logs",
    ),
    family="split-brain",
    soak=SOAK,
)
def _shows_own_end(original: Any, self: Any, end: int) -> None:
    original(self, end)
    if self.leader is not None:
        self.confirm.advance(self._log.whole_end())


@mutant(
    "M11",
    "queue offsets recovered from confirm",
    "rocketbed.node.store.epochs:StoreEpochs._next_offsets",
    bug="a new leader numbers on behind what is confirmed, over its unconfirmed end (7689, 6344)",
    edit="what is in the log and not dispatched yet is not looked at",
    caught_by=(
        "queue-entry-places",
        "dense-queue-offsets",
        "inconsistent-offset",
        "lost-write",
        "queue-entries-complete",
    ),
    family="failover",
    soak=SOAK,
)
async def _offsets_from_confirm(_original: Any, self: Any) -> Any:
    self.changes = []
    return self._parts.queues.next_offsets()


@planted(
    "M13",
    "ack of an old epoch counted",
    bug="what a follower acknowledged before it cut its log counts for the next epoch (9689)",
    edit="a repeated leader keeps the positions of its followers in its epoch before",
    caught_by=("acked-before-durable", "lost-write"),
    unshown="each epoch has another link, and what was acknowledged is longer than the next epoch's"
    " log only where the set's other member led in between with less",
    family="failover",
    soak=SOAK,
    targets=(_LEADER,),
)
def _old_positions() -> None:
    positions: dict[tuple[str, int], dict[int, Any]] = {}

    def begin(self: Any, world: Any, log: Any, agent: Any, *args: Any, **named: Any) -> None:
        original(self, world, log, agent, *args, **named)
        life = world.name, agent.me.incarnation
        self.view.positions.update(positions.get(life, {}))
        positions[life] = self.view.positions

    original = swap(_LEADER, begin)


@mutant(
    "M14",
    "lease not checked",
    "rocketbed.replication.leader:Leader.is_acting",
    bug="an isolated leader goes on: it keeps positions that the next one never had (6509)",
    edit="a leader acts until it hears that another one leads",
    caught_by=(
        "wrong-reported-offset",
        "offset-regress",
        "offset-overrun",
        "group-skip",
        "phantom-write",
    ),
    unshown="it bounds how long a deposed leader is written to: nothing of that is confirmed",
    family="split-brain",
    soak=SOAK,
)
def _acts_without_lease(_original: Any, self: Any) -> bool:
    return not self._is_over


@planted(
    "M20",
    "in-sync set expanded too early",
    bug="a follower joins that has not the epoch's marker, hence not all that was confirmed before",
    edit="a replica with everything this epoch confirmed is complete",
    caught_by=(
        "lost-write",
        "acked-before-durable",
        "vanished-read",
        "equal-logs",
        "unseen-message",
    ),
    unshown="it takes an election within the milliseconds before the marker comes: the watch of"
    " tests/sim/test_failover_rules.py sees it (I5)",
    family="failover",
    soak=SOAK,
    targets=(
        _COMPLETE,
        _MARKER,
    ),
)
def _joins_without_marker() -> None:
    def is_complete(self: Any, end: int) -> bool:
        return bool(end >= self.confirm)

    def is_outside(self: Any, replica: int) -> bool:
        return replica in self.positions and replica not in self.entry.in_sync

    swap(_COMPLETE, is_complete)
    swap(_MARKER, is_outside)


@mutant(
    "M26",
    "older connection kept",
    "rocketbed.replication.native_link:NativeLink.end",
    bug="a follower's late HELLO stands for the connection that it has, and ends: the leader knows"
    " of none any more, and nothing is acknowledged for good",
    edit="a newer connection of a follower ends no older one",
    caught_by=("replicas-in-sync", "leader-serves", "producers-continue", "sends-succeed"),
    family="failover",
    soak=SOAK,
)
def _keeps_older(_original: Any, self: Any, reason: str) -> None:
    pass
