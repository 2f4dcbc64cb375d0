"""How far each node is, several times a second: what is written, what is on disk, what is promised.

A node is asked for its runtime information, as any tool would; while it is down there is no sample,
and the line of the report has a gap there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from chaos.demo.load import Counts
from chaos.process.cluster import LocalCluster
from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError
from rocketbed.remoting.errors import RemotingError

PERIOD_S: Final = 0.2


@dataclass(slots=True)
class NodeSamples:
    """One node's offsets, bytes, column by column."""

    at_s: list[float] = field(default_factory=list)
    written: list[int | None] = field(default_factory=list)
    """None: the node did not answer."""
    flushed: list[int | None] = field(default_factory=list)

    def as_row(self) -> dict[str, object]:
        """As JSON fields."""
        return {
            "at_s": [round(at_s, 3) for at_s in self.at_s],
            "written": self.written,
            "flushed": self.flushed,
        }


@dataclass(slots=True)
class LoadSamples:
    """What the producers know, column by column."""

    at_s: list[float] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    """Messages so far."""
    physical: list[int] = field(default_factory=list)
    """Highest acknowledged physical offset, bytes; -1 before the first."""

    def as_row(self) -> dict[str, object]:
        """As JSON fields."""
        return {
            "at_s": [round(at_s, 3) for at_s in self.at_s],
            "acknowledged": self.acknowledged,
            "physical": self.physical,
        }


class Sampler:
    """Asks all nodes, again and again."""

    def __init__(
        self, cluster: LocalCluster, counts: Counts, *, now_s: Callable[[], float]
    ) -> None:
        self.nodes = {name: NodeSamples() for name in cluster.nodes}
        self.load = LoadSamples()
        self._cluster = cluster
        self._counts = counts
        self._now_s = now_s

    async def run(self) -> None:
        """Sample until cancelled."""
        async with self._cluster.admin() as admin:
            while True:
                await self.sample(admin)
                await trio.sleep(PERIOD_S)

    async def sample(self, admin: Admin) -> None:
        """Ask every node once."""
        self.load.at_s.append(self._now_s())
        self.load.acknowledged.append(self._counts.acknowledged)
        self.load.physical.append(self._counts.physical)
        async with trio.open_nursery() as nursery:
            for name in self.nodes:
                nursery.start_soon(self._ask, admin, name)

    async def _ask(self, admin: Admin, name: str) -> None:
        info: dict[str, str] = {}
        if self._cluster.pid(name) is not None:
            try:
                info = await admin.runtime_info(self._cluster.address(name))
            except (ClientError, RemotingError):
                info = {}
        written, flushed = offsets_of(info)
        samples = self.nodes[name]
        samples.at_s.append(self._now_s())
        samples.written.append(written)
        samples.flushed.append(flushed)


def offsets_of(info: dict[str, str]) -> tuple[int | None, int | None]:
    """Written and flushed offset from a node's runtime information; None where it is not told."""
    text = info.get("commitLogMaxOffset", "")
    if not text.isdigit():
        return None, None
    written = int(text)
    behind = info.get("remainHowManyDataToFlush", "").partition(" ")[0]
    return written, written - int(behind) if behind.isdigit() else None
