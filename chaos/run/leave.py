"""Permits for nodes to end on their own because of a fault, limited in time.

A crash point permits exactly one end. A disk fault permits ends while it lasts and, for an
incarnation that met it, a little longer, since a node that has to give up may take a while.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rocketbed.chaos.run.members import Members

AFTER_NS: Final = 10_000_000_000
"""Longest time from the end of a fault to an end that it caused: a stop that syncs on a slow
disk."""


@dataclass(eq=False, slots=True)
class Permit:
    nodes: tuple[str, ...]
    cause: str
    """The step that causes the ends."""
    begin_ns: int
    only: tuple[str, ...] = ("",)
    """Permitted beginnings of the reason for an end."""
    ended_ns: int | None = None
    """Time at which the fault was over; None while it lasts."""
    incarnations: tuple[int, ...] = ()
    """Incarnation of each node when the fault was over."""


class Leave:
    """Permits of the nodes to end, by the faults in force."""

    def __init__(self, members: Members, now_ns: Callable[[], int]) -> None:
        self._members = members
        self._now_ns = now_ns
        self._permits: list[Permit] = []

    def begin(self, nodes: Iterable[str], cause: str, *only: str) -> Permit:
        """Permit these nodes to end from now on, with `only` for these reasons."""
        permit = Permit(tuple(nodes), cause, self._now_ns(), only or ("",))
        self._permits.append(permit)
        return permit

    def over(self, permit: Permit) -> None:
        """Note that the fault is over. Nodes that met it may still end. Idempotent."""
        if permit.ended_ns is None:
            permit.ended_ns = self._now_ns()
            permit.incarnations = tuple(map(self._incarnation, permit.nodes))

    def withdraw(self, permit: Permit) -> None:
        """Withdraw a permit entirely. Idempotent."""
        if permit in self._permits:
            self._permits.remove(permit)

    def of(self, node: str, reason: str) -> Permit | None:
        """Return the newest permit that covers an end of this node just now; None if there is
        none."""
        matching = (
            permit
            for permit in reversed(self._permits)
            if node in permit.nodes and reason.startswith(permit.only)
        )
        return next((permit for permit in matching if self._covers(permit, node)), None)

    def _covers(self, permit: Permit, node: str) -> bool:
        if permit.ended_ns is None:
            return True
        incarnation = permit.incarnations[permit.nodes.index(node)]
        return (
            incarnation == self._incarnation(node) and self._now_ns() <= permit.ended_ns + AFTER_NS
        )

    def _incarnation(self, node: str) -> int:
        member = self._members.members.get(node)
        return 0 if member is None else member.incarnation
