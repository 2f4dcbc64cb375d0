"""Lasting faults: the state of each link and disk, from all steps that have not ended.

Two steps may affect the same link, and when one ends, the other's part has to stay. So each step
registers its part here, and a link or disk gets the sum of the parts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rocketbed.chaos.run.api import Backend, DiskFault
from rocketbed.chaos.run.leave import Leave, Permit
from rocketbed.chaos.run.links import LinkState

Pair = tuple[str, str]
"""One direction: (source, target)."""


@dataclass(eq=False, slots=True)
class Effect:
    links: dict[Pair, LinkState] = field(default_factory=dict)
    disks: dict[str, DiskFault] = field(default_factory=dict)
    permit: Permit | None = None
    """The permit that it gives nodes to end."""


class Effects:
    def __init__(self, backend: Backend, leave: Leave) -> None:
        self._backend = backend
        self._leave = leave
        self._parts: list[Effect] = []

    async def begin(self, effect: Effect) -> None:
        self._parts.append(effect)
        await self._apply([effect])

    async def end(self, effect: Effect) -> None:
        """Withdraw the effect. Idempotent."""
        if effect in self._parts:
            self._parts.remove(effect)
            await self._take_off([effect])

    async def end_all(self) -> None:
        parts, self._parts = self._parts, []
        await self._take_off(parts)

    @property
    def in_force(self) -> bool:
        """True if any fault is on a link or disk."""
        return bool(self._parts)

    def links(self) -> dict[Pair, LinkState]:
        """Return the state of each link that has a fault."""
        return {pair: self._link(pair) for effect in self._parts for pair in effect.links}

    def _link(self, pair: Pair) -> LinkState:
        return _together([effect.links[pair] for effect in self._parts if pair in effect.links])

    async def _take_off(self, parts: list[Effect]) -> None:
        await self._apply(parts)
        for part in parts:
            if part.permit is not None:
                self._leave.over(part.permit)

    async def _apply(self, changed: list[Effect]) -> None:
        for pair in dict.fromkeys(pair for effect in changed for pair in effect.links):
            await self._backend.set_link(*pair, self._link(pair))
        for node in dict.fromkeys(node for effect in changed for node in effect.disks):
            faults = [effect.disks[node] for effect in self._parts if node in effect.disks]
            await self._backend.set_disk(node, faults)


def _together(states: list[LinkState]) -> LinkState:
    rates = [state.rate for state in states if state.rate is not None]
    return LinkState(
        cut=any(state.cut for state in states),
        delay_s=sum(state.delay_s for state in states),
        jitter_s=sum(state.jitter_s for state in states),
        loss=max((state.loss for state in states), default=0.0),
        rate=min(rates, default=None),
    )


def both_ways(first: Iterable[str], second: Iterable[str], *, one_way: bool = False) -> list[Pair]:
    """Return the directions between two sets of machines; with `one_way` only from first to
    second."""
    pairs: dict[Pair, None] = {}
    targets = list(second)
    for source in first:
        for target in targets:
            if source != target:
                pairs[source, target] = None
                if not one_way:
                    pairs[target, source] = None
    return list(pairs)
