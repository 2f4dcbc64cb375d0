"""The rules of failover, each with what is left when it is taken away, and a hunt for the loss.

The simulator's half of the mutation test of replication.md 7.7: the model has each rule as a
decision, here it is the code of `replication` that runs without it, over disks and links that fail.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from rocketbed.chaos.backends.sim.incarnation import SimulationError
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.replication import election, epoch_file, epochs, follower, leader, member
from rocketbed.replication.election import registered
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.epochs import Epoch, History
from rocketbed.replication.follower import Follower
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.leader import Leader
from rocketbed.replication.native_link import NativeLink
from rocketbed.replication.register import register
from rocketbed.world.api import World
from tests.support.model import rules as model
from tests.support.sim import failover
from tests.support.sim.failover import RecordLog
from tests.support.sim.failover_storm import (
    Storm,
    cut_off_while_adding,
    reborn_while_joining,
)
from tests.support.sim.failover_watch import WatchedGroup

FAULTS_S: Final = 12.0
"""Simulated seconds of faults of one seed."""
RATE: Final = 60.0
"""Messages a second."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the edits without it: owner, attribute, what stands there instead."""

    edits: tuple[tuple[Any, str, Callable[..., Any]], ...]
    replicas: int = 3
    """Two are a group under the policy `fsync`."""
    course: Callable[[Storm], None] | None = None
    """Faults in an order that suits, where those that chance brings take long."""

    @contextmanager
    def removed(self) -> Iterator[None]:
        kept = [(owner, name, getattr(owner, name)) for owner, name, _ in self.edits]
        try:
            for edit in self.edits:
                setattr(*edit)
            yield
        finally:
            for one in kept:
                setattr(*one)


def _of_model(name: str) -> Callable[..., Any]:
    """What stands in a rule's place in the model."""
    return model.RULES[name].edits[0][2]


def _stays_member(
    entry: GroupEntry, number: int, replica: Replica, *, lossless: bool
) -> GroupEntry:
    if not entry.replicas:
        return registered(entry, number, replica, lossless=lossless)
    stays: GroupEntry = _of_model("a restart ends membership")(
        entry, number, replica, lossless=lossless
    )
    return stays


async def _identity_at_once(world: World, policy: Policy) -> tuple[str, int, bool]:
    """A loss is told by the life that follows it, and by no later one."""
    found = await _IDENTITY(world, policy)
    await failover._kept(world, "boot", lambda _: world.process.boot_id)
    return found


_IDENTITY = failover._identity


async def _to_own_confirm(self: Follower, link: NativeLink) -> None:
    confirm = max(self._confirm.value, self._log.min_offset)
    if confirm < self._log.written.value:
        await self._cut(confirm)
    await _FOLLOW(self, link)


_FOLLOW = Follower._follow


async def _no_marker(self: RecordLog, number: int, leader: int) -> int:
    await self.flush()
    return self.written.value


def _begun(history: History, epoch: Epoch) -> History:
    return history if history and history[-1].start == epoch.start else (*history, epoch)


def _check(history: History, end: int) -> History:
    return epochs.check(history, end + 1)


def _with_empty(history: History, end: int) -> History:
    return tuple(epoch for epoch in history if epoch.start <= end)


async def _noted_before(self: Follower, history: History, offset: int, body: bytes) -> None:
    """The bytes count before the history on disk has their epoch."""
    self._recorded_end = max(self._recorded_end, offset + len(body))
    await _APPEND(self, history, offset, body)


_APPEND = Follower._append


async def _follow_first(self: Follower, link: NativeLink) -> None:
    """The promise is not written."""
    file = self._file
    save = file.save

    async def save_rest(**changes: object) -> None:
        changes.pop("promised", None)
        if changes:
            await save(**changes)

    file.save = save_rest  # type: ignore[method-assign]
    try:
        await _FOLLOW(self, link)
    finally:
        del file.save


def _any_life(view: InSyncView, replica: int, incarnation: int) -> int:
    position = view.positions.get(replica)
    return 0 if position is None else position.end


def _without_reserve(entry: GroupEntry, **changes: Any) -> GroupEntry:
    return _NEXT(replace(entry, eligible={}), **{**changes, "eligible": {}})


_NEXT = election._next


def _is_outside(view: InSyncView, replica: int) -> bool:
    return replica in view.positions and replica not in view.entry.in_sync


def _always(*_: object, **__: object) -> bool:
    return True


RULES: dict[str, Rule] = {
    "a lossy restart is told": Rule(((failover, "lost_nothing", _always),)),
    "a loss is told until it is heard": Rule(((failover, "_identity", _identity_at_once),)),
    "a restart ends membership": Rule(((register, "registered", _stays_member),)),
    "the minimum is strict": Rule(((InSyncView, "has_enough", _always),)),
    "under fsync the synced end counts": Rule(
        ((Policy, "held", _of_model("under fsync the synced end counts")),), replicas=2
    ),
    "all of both sets acknowledge": Rule(
        ((InSyncView, "need", _of_model("all of both sets acknowledge")),)
    ),
    "only registered lives join": Rule(
        ((GroupEntry, "is_registered", _always),), course=reborn_while_joining
    ),
    "a cut goes by epochs": Rule(((Follower, "_follow", _to_own_confirm),)),
    "no epoch is empty": Rule(
        (
            (RecordLog, "begin_epoch", _no_marker),
            (member, "begun", _begun),
            (member, "cut_to", _with_empty),
            (epoch_file, "cut_to", _with_empty),
            (follower, "check", _check),
            (leader, "check", _check),
            (InSyncView, "_is_complete", lambda v, end: end >= v.start and end >= v.confirm),
            (InSyncView, "has_marker", _is_outside),
        )
    ),
    "the minimum is of the known set": Rule(
        ((InSyncView, "has_enough", _of_model("the minimum is of the known set")),)
    ),
    "a request ends by its answer only": Rule(
        ((InSyncView, "_is_over", _always),), course=cut_off_while_adding
    ),
    "who joins has the marker": Rule(
        (
            (InSyncView, "_is_complete", lambda view, end: end >= view.confirm),
            (InSyncView, "has_marker", _is_outside),
        )
    ),
    "an epoch is on disk before its bytes are acknowledged": Rule(
        ((Follower, "_append", _noted_before),)
    ),
    "a promise is on disk before anything is acknowledged": Rule(
        ((Follower, "_follow", _follow_first),)
    ),
}

SECOND_LINES: dict[str, tuple[Rule, str]] = {
    "an acknowledgement is of the member's life": (
        Rule(((InSyncView, "_end_of", _any_life),)),
        "a new life is in the set only when the register added it, and acknowledges what it has",
    ),
    "the lease ends what producers may append": (
        Rule(((Leader, "may_append", lambda self: not self._is_over),)),
        "it bounds how long a deposed leader is written to; nothing of that is confirmed (7.8)",
    ),
    "who left at the minimum stays eligible": (
        Rule(((election, "_next", _without_reserve),)),
        "fewer may be elected then, and nobody who is not complete",
    ),
}
"""Rules without which no violation was found, each with the reason."""


def run(
    seed: int,
    *,
    replicas: int = 3,
    course: Callable[[Storm], None] | None = None,
    only_outcomes: bool = False,
) -> str:
    """One seed; the first violation, empty for none."""
    with Simulation(seed=seed) as simulation:
        for number in range(replicas):
            simulation.host(f"r{number}")
        group = WatchedGroup(simulation, replicas=replicas, rate=RATE, only_outcomes=only_outcomes)
        try:
            group.settle()
            storm = Storm(group, seed)
            if course is None:
                storm.blow(FAULTS_S)
            else:
                course(storm)
            storm.clear()
            simulation.run(2)
            if not group.is_hopeless():
                group.check()
        except SimulationError as exc:
            return group.violation or f"I21: {exc}"
        except Exception as exc:  # whatever ends a process is a finding
            return group.violation or _text(exc)
        return group.violation


def find(rule: Rule, first: int, seeds: int) -> tuple[int, str]:
    """The first of so many seeds from `first` on that shows what is lost without a rule, and what
    it shows; the text is empty if none does."""
    for seed in range(first, first + seeds):
        with rule.removed():
            if found := run(seed, replicas=rule.replicas, course=rule.course):
                return seed, found
    return first + seeds, ""


def _text(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]
