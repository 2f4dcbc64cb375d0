"""Effects of a power cut on a disk, if it took all that it may."""

from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.world.api import World

PASSING: Final = ("/lock", "/rocketbed.tmp/")
"""Of no use to a next start."""


class Loss:
    """Files of a disk that a power cut would change, each by its path."""

    def __init__(self, disk: Any) -> None:
        self.left = _cut(disk.image())
        """Disk after the power cut."""
        before, after = _files(disk.image()), _files(self.left)
        # A file of zeros is preallocated, and will be again.
        self.lost = [path for path in before if path not in after and any(before[path])]
        """Their names would be gone."""
        self.back = [path for path in after if path not in before]
        """Removed, and their names would be there again."""
        self.other = [path for path in before if _differs(before[path], after.get(path))]
        """They would hold other bytes; fewer zeros are no difference."""

    @property
    def behind(self) -> list[str]:
        """Files with writes, or with names, that are not synced."""
        return self.lost + self.other


def ensure_durable(world: World, case: str, *places: str, since: "Loss | None" = None) -> None:
    """Check that all files, or those in `places`, are synced, except those that were not `since`
    then."""
    old = since.behind if since is not None else []
    unsynced = [path for path in Loss(world.disk).behind if path.startswith(places or "/")]
    unsynced = [path for path in unsynced if path not in old]
    assert not unsynced, f"durable: {case}: {unsynced} are not synced"


def _differs(before: bytes, after: bytes | None) -> bool:
    return after is not None and after != before and (any(before) or any(after))


def _cut(image: DiskImage) -> DiskImage:
    disk = SimDisk(image, random=Random(0))
    disk.power_cut("strict")
    return disk.image()


def _files(image: DiskImage) -> dict[str, bytes]:
    return {
        path: image.contents(path)
        for path in image.paths()
        if not any(one in path for one in PASSING)
    }
