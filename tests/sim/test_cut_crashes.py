"""A kill and a power cut at every disk event of a former master's cut, and at its next start.

Two hosts are prepared once: b2, the promoted master, and b1 with a tail that b2 does not have. For
each event of b1's run, from its start to when it follows, it dies there and starts again; in the
end it holds b2's log, keeps what it lost, and the independent reader finds no damage.
"""

from functools import lru_cache
from pathlib import Path

import pytest

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from tests.support.sim.links import cut
from tests.support.sim.promotion import Group

LOST, NEW = 140, 90
SIZE = 1500
QUICK_STEP = 7
"""`make test` visits every seventh event, `make test-all` all of them."""


@lru_cache(maxsize=2)
def prepared(sync_flush: bool) -> tuple[DiskImage, DiskImage, bytes]:
    """Disks of b1 and b2, and b1's log."""
    with Group(1, sync_flush=sync_flush) as group:
        group.start("b1", "b2")
        group.simulation.run(2)
        group.send(60, size=SIZE)
        group.run_until_equal("b2")
        cut(group.simulation.network, "b1", "b2")
        group.send(LOST, prefix="lost", size=SIZE)
        log = group.log_of("b1")
        first = group.simulation.process("b1")
        group.simulation.stop("b1")
        group.simulation.run(20, until=lambda: first.done)
        group.promote("b2")
        group.restart("b2")
        group.send(NEW, prefix="new", size=SIZE)
        second = group.simulation.process("b2")
        group.simulation.stop("b2")
        group.simulation.run(20, until=lambda: second.done)
        return group.simulation.host("b1").image, group.simulation.host("b2").image, log


class Return(Group):
    """b1 comes back to b2."""

    def __init__(self, *, sync_flush: bool) -> None:
        super().__init__(1, sync_flush=sync_flush)
        self.promote("b2")
        first_image, two, self.before = prepared(sync_flush)
        self.simulation.host("b1").image = first_image
        self.simulation.host("b2").image = two

    def begin(self) -> None:
        """Start both; b1 has had no disk event yet."""
        self.start("b2")
        self.simulation.run(5, until=lambda: "b2" in self.nodes)
        self.start("b1")

    def is_following(self) -> bool:
        """True if b1 follows b2, and has its whole log."""
        if "b1" not in self.nodes:
            return False
        node = self.nodes["b1"]
        end = self.nodes["b2"].store.max_offset
        return node.replication.is_following and node.store.dispatched.value == end


def events_of_a_return(sync_flush: bool) -> tuple[int, int]:
    """Disk events of b1 when its log has diverged, and when it has followed."""
    with Return(sync_flush=sync_flush) as group:
        group.begin()
        disk = group.simulation.process("b1").disk
        group.simulation.run(20, until=lambda: bool(group.events("replication.diverged", "b1")))
        diverged = disk.events
        group.simulation.run(20, until=group.is_following)
        return diverged, disk.events


def first_kept(group: Return) -> int:
    """Return the offset from which b1 keeps all that it lost.

    Parts that recovery kept of torn frames are there as well, and left out.
    """
    low = end = len(group.before)
    for name, data in sorted(group.kept_of("b1").items(), reverse=True):
        at = int(name.partition(".")[0])
        whole = data == group.before[at : at + len(data)]
        if ".new" not in name and whole and at + len(data) >= low:
            low = min(low, at)
    assert low < end
    return low


def die_and_return(event: int, kind: str, directory: Path, *, sync_flush: bool) -> None:
    with Return(sync_flush=sync_flush) as group:
        group.begin()
        process = group.simulation.process("b1")
        disk = process.disk
        disk.crash_at = event
        disk.crash_kind, disk.crash_mode = ("kill", "random") if kind == "kill" else ("power", kind)
        group.simulation.tolerate_crashes = True
        group.simulation.run(20, until=lambda: process.done)
        group.nodes.pop("b1", None)
        group.start("b1")
        group.simulation.tolerate_crashes = False
        group.simulation.run(20, until=group.is_following)
        log = group.log_of("b1")
        assert log == group.log_of("b2")
        both = zip(log, group.before, strict=False)
        diverged = next(at for at, (new, old) in enumerate(both) if new != old)
        assert first_kept(group) <= diverged
        group.restart("b1")
        group.simulation.run(1)
        group.check_directory("b1", directory)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("kind", ["kill", "random", "strict"])
@pytest.mark.parametrize(
    "offset", [pytest.param(n, marks=() if n == 3 else pytest.mark.slow) for n in range(QUICK_STEP)]
)
def test_a_crash_at_any_event_of_the_cut(
    offset: int, kind: str, sync_flush: bool, tmp_path: Path
) -> None:
    diverged, followed = events_of_a_return(sync_flush)
    assert followed - diverged > 30
    for event in range(diverged + offset, followed + 1, QUICK_STEP):
        try:
            die_and_return(event, kind, tmp_path / f"{event}", sync_flush=sync_flush)
        except Exception as exc:
            raise AssertionError(f"{kind} at event {event}: {exc!r}") from exc
