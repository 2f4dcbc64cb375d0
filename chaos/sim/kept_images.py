"""Disks as kills and power cuts left them, kept for the checks of recovery."""

from collections import Counter
from pathlib import Path
from typing import Final

from rocketbed.chaos.record import IMAGES, Image
from rocketbed.chaos.sim.disk_image import DiskImage

IMAGES_MAX: Final = 6
"""Images of one node that are kept: the last ones."""


class KeptImages:
    """What each node's disk held at its ends."""

    def __init__(self, store: str) -> None:
        """`store` is the directory of the store on every disk, with its slash."""
        self.records: list[Image] = []
        """What is kept, oldest first."""
        self._store = store
        self._kept: dict[tuple[str, int], DiskImage] = {}
        self._counts: Counter[str] = Counter()

    def keep(
        self, image: DiskImage, node: str, cause: str, *, time_ns: int, written: int, durable: int
    ) -> None:
        """Keep a node's disk, with the ends of its log at that time."""
        self._counts[node] += 1
        number = self._counts[node]
        self._kept[node, number] = image
        self.records.append(
            Image(
                node=node,
                number=number,
                time_ns=time_ns,
                cause=cause,
                directory=f"{IMAGES}/{node}-{number}{self._store}",
                written=written,
                durable=durable,
            )
        )
        own = [record for record in self.records if record.node == node]
        if len(own) > IMAGES_MAX:
            self.records.remove(own[0])
            del self._kept[node, own[0].number]

    def export(self, directory: Path) -> None:
        for record in self.records:
            place = directory / IMAGES / f"{record.node}-{record.number}"
            self._kept[record.node, record.number].export(str(place))
