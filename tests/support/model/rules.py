"""The rules of failover, each with what is left when it is taken away (replication.md 7.7)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rocketbed.replication import election, epochs, restart
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.epochs import Epoch, History
from rocketbed.replication.insync import InSyncView
from tests.support.model.cluster import Cluster
from tests.support.model.node import Node


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the edits without it: owner, attribute, what stands there instead."""

    edits: tuple[tuple[Any, str, Callable[..., Any]], ...]

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


def _stays_member(
    entry: GroupEntry, number: int, replica: Replica, *, lossless: bool
) -> GroupEntry:
    leader = None if entry.leader == number else entry.leader
    lives = {number: replica.incarnation}
    return replace(
        entry,
        version=entry.version + 1,
        leader=leader,
        replicas={**entry.replicas, number: replica},
        in_sync={**entry.in_sync, **lives} if number in entry.in_sync else entry.in_sync,
        eligible={**entry.eligible, **lives} if number in entry.eligible else entry.eligible,
    )


def _only_known(view: InSyncView) -> set[tuple[int, int]]:
    return set(view.entry.in_sync.items())


def _union_is_enough(view: InSyncView) -> bool:
    return len({number for number, _ in view.need()}) >= view.entry.min_in_sync


def _by_the_last_end(cluster: Cluster, node: Node, end: int) -> bool:
    return end < len(node.log)


def _to_own_confirm(cluster: Cluster, node: Node, leader: Node) -> int:
    return min(node.confirm, len(node.log))


def _without_marker(cluster: Cluster, node: Node, number: int) -> int:
    if not node.history or node.history[-1].start < len(node.log):
        node.history = (*node.history, Epoch(number, len(node.log)))
    return len(node.log) - 1


def _learn_empty(cluster: Cluster, node: Node, leader: Node) -> None:
    for epoch in leader.history:
        last = node.history[-1] if node.history else Epoch(-1, -1)
        if last < epoch and last.start < epoch.start <= len(node.log):
            node.history = (*node.history, epoch)


def _with_empty(history: History, end: int) -> History:
    return tuple(epoch for epoch in history if epoch.start <= end)


def _any_life(view: InSyncView, replica: int, incarnation: int) -> int:
    position = view.positions.get(replica)
    return 0 if position is None else position.end


def _without_reserve(entry: GroupEntry, **changes: Any) -> GroupEntry:
    return replace(entry, **{**changes, "eligible": {}})


RULES = {
    "a lossy restart is told": Rule(((restart, "lost_nothing", lambda *_, **__: True),)),
    "a loss is told until it is heard": Rule(((Cluster, "is_lossy", _by_the_last_end),)),
    "a restart ends membership": Rule(((election, "registered", _stays_member),)),
    "the minimum is strict": Rule(((InSyncView, "has_enough", lambda _: True),)),
    "under fsync the synced end counts": Rule(
        ((Policy, "held", lambda _, *, written, flushed: written),)
    ),
    "all of both sets acknowledge": Rule(((InSyncView, "need", _only_known),)),
    "only registered lives join": Rule(((GroupEntry, "is_registered", lambda *_: True),)),
    "a cut goes by epochs": Rule(((Cluster, "common_end", _to_own_confirm),)),
    "no epoch is empty": Rule(
        (
            (Cluster, "begin", _without_marker),
            (Cluster, "learn", _learn_empty),
            (epochs, "cut_to", _with_empty),
        )
    ),
    "the minimum is of the known set": Rule(((InSyncView, "has_enough", _union_is_enough),)),
    "a promise binds": Rule(
        (
            (Cluster, "may_follow", lambda *_: True),
            (Cluster, "is_linked", lambda *_: True),
        )
    ),
    "a request ends by its answer only": Rule(((InSyncView, "_is_over", lambda *_: True),)),
    "who joins has the marker": Rule(
        ((InSyncView, "_is_complete", lambda view, end: end >= view.confirm),)
    ),
}

SECOND_LINES = {
    "an acknowledgement is of the member's life": (
        Rule(((InSyncView, "_end_of", _any_life),)),
        "a new life is in the set only when the register added it, and acknowledges what it has",
    ),
    "who left at the minimum stays eligible": (
        Rule(((election, "replace", _without_reserve),)),
        "without it fewer may be elected, and nobody who is not complete",
    ),
}
"""Rules without which no violation was found, each with the reason."""
