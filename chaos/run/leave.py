"""Which nodes may end by themselves now, since a fault makes them: so long, and no longer.

A crash point permits the one end that it is. A fault of a disk permits ends for as long as it is
there and, for an incarnation that met it, a little longer: a node that has to give up may take a
while to do so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rocketbed.chaos.run.members import Members

AFTER_NS: Final = 10_000_000_000
"""What a node may take to end after the fault that makes it: a stop that syncs on a slow disk."""


@dataclass(eq=False, slots=True)
class Permit:
    nodes: tuple[str, ...]
    cause: str
    """The step that makes them end."""
    begin_ns: int
    only: tuple[str, ...] = ("",)
    """What the reason of such an end begins with: one of these."""
    ended_ns: int | None = None
    """When the fault was over; None while it is there."""
    incarnations: tuple[int, ...] = ()
    """Of each node, when it was over."""


class Leave:
    """Who has leave to end, by the faults in force."""

    def __init__(self, members: Members, now_ns: Callable[[], int]) -> None:
        self._members = members
        self._now_ns = now_ns
        self._permits: list[Permit] = []

    def begin(self, nodes: Iterable[str], cause: str, *only: str) -> Permit:
        """These nodes may end from now on, with `only` for such reasons."""
        permit = Permit(tuple(nodes), cause, self._now_ns(), only or ("",))
        self._permits.append(permit)
        return permit

    def over(self, permit: Permit) -> None:
        """The fault is gone; those that met it may still end. Idempotent."""
        if permit.ended_ns is None:
            permit.ended_ns = self._now_ns()
            permit.incarnations = tuple(map(self._incarnation, permit.nodes))

    def withdraw(self, permit: Permit) -> None:
        """Nobody may end by it any more. Idempotent."""
        if permit in self._permits:
            self._permits.remove(permit)

    def of(self, node: str, reason: str) -> Permit | None:
        """By which this node may have ended by itself just now: the newest."""
        ours = (
            one
            for one in reversed(self._permits)
            if node in one.nodes and reason.startswith(one.only)
        )
        return next((one for one in ours if self._covers(one, node)), None)

    def _covers(self, permit: Permit, node: str) -> bool:
        if permit.ended_ns is None:
            return True
        met = permit.incarnations[permit.nodes.index(node)]
        return met == self._incarnation(node) and self._now_ns() <= permit.ended_ns + AFTER_NS

    def _incarnation(self, node: str) -> int:
        member = self._members.members.get(node)
        return 0 if member is None else member.incarnation
