"""Synced ends of a simulated log, from the disk's events alone."""

import pytest

from rocketbed.chaos.backends.sim.logwatch import LogWatch
from rocketbed.chaos.checks.ends import NodeEnds
from rocketbed.chaos.evidence.trace import Ends, NodeTrace

DIRECTORY = "/store/commitlog"
FIRST = f"{DIRECTORY}/{0:020d}"


def watch(*events: tuple[str, str, int]) -> LogWatch:
    """Events as (kind, path, size of a write from the start)."""
    log_watch = LogWatch(NodeTrace())
    for time_ns, (kind, path, size) in enumerate(events, start=1):
        log_watch.saw(time_ns, kind, path, 0, size)
    return log_watch


def test_sync_counts_once_its_name_is_durable() -> None:
    synced = (("write", FIRST, 100), ("sync", FIRST, 0), ("sync_end", FIRST, 0))
    assert watch(*synced).ends() == Ends(100, 0)
    named = watch(*synced, ("sync_dir", DIRECTORY, 0), ("sync_dir_end", DIRECTORY, 0))
    assert named.ends() == Ends(100, 100)
    assert list(named.trace.entries())[-1] == (5, Ends(100, 100))


def test_directory_sync_covers_names_present_at_its_begin() -> None:
    log_watch = watch(
        ("sync_dir", DIRECTORY, 0),
        ("write", FIRST, 100),
        ("sync", FIRST, 0),
        ("sync_end", FIRST, 0),
        ("sync_dir_end", DIRECTORY, 0),
    )
    assert log_watch.ends() == Ends(100, 0)


def test_loss_by_a_power_cut_is_named() -> None:
    log_watch = watch(("write", FIRST, 100))
    log_watch.lost_power(2)
    log_watch.recovered(3, 60, 4096, is_durable=True)
    assert log_watch.ends() == Ends(60, 60)


def test_leftovers_of_a_kill_are_not_a_loss() -> None:
    log_watch = watch(("write", FIRST, 100), ("sync", FIRST, 0), ("sync_end", FIRST, 0))
    log_watch.died()
    log_watch.recovered(5, 100, 4096, is_durable=False)
    assert log_watch.ends() == Ends(100, 0)


def test_a_segment_exists_from_its_name_on() -> None:
    """Its directory may be synced before the first byte is written."""
    log_watch = watch(
        ("rename", FIRST, 0),
        ("sync_dir", DIRECTORY, 0),
        ("sync_dir_end", DIRECTORY, 0),
        ("write", FIRST, 100),
        ("sync", FIRST, 0),
        ("sync_end", FIRST, 0),
    )
    assert log_watch.ends() == Ends(100, 100)


def test_failed_sync_needs_the_data_written_again() -> None:
    log_watch = watch(
        ("sync_dir", DIRECTORY, 0),
        ("write", FIRST, 100),
        ("sync_dir_end", DIRECTORY, 0),
        ("sync", FIRST, 0),
        ("sync_failed", FIRST, 0),
        ("sync", FIRST, 0),
        ("sync_end", FIRST, 0),
    )
    assert log_watch.ends() == Ends(100, 0)
    for time_ns, kind in enumerate(("sync_dir", "sync_dir_end"), start=8):
        log_watch.saw(time_ns, kind, DIRECTORY, 0, 0)
    assert log_watch.ends() == Ends(100, 0)
    for time_ns, (kind, size) in enumerate((("write", 100), ("sync", 0), ("sync_end", 0)), 10):
        log_watch.saw(time_ns, kind, FIRST, 0, size)
    assert log_watch.ends() == Ends(100, 100)


def test_node_dying_during_a_write_had_written() -> None:
    """It may have said so in that moment (seed 29733, a false R3)."""
    trace = NodeTrace()
    for time_ns, written in ((1, 10), (5, 100), (5, 110), (5, 40), (9, 50)):
        trace.add(time_ns, written, 10)
    ends = NodeEnds(trace)
    assert ends.highest(5, 5).written == 110
    assert ends.highest(4, 5).written == 110
    assert ends.highest(6, 6).written == 40
    assert ends.highest(9, 9).written == 50
    trace.add(11, 20, 10)
    assert ends.highest(11, 11).written == 50
    assert ends.highest(12, 12).written == 20
    assert [ends.at(time_ns).written for time_ns in (4, 5, 9)] == [10, 40, 50]
    assert ends.lowest_fall(4, 5) == 40


@pytest.mark.parametrize(
    ("next_end", "low", "rejoined"),
    [
        (5000, 4000, True),
        (5000, 4008, True),
        (5000, 4009, False),
        (5000, 4096, True),
        (4090, 4096, False),
    ],
)
def test_log_cut_to_a_common_blank_equals_its_masters(
    next_end: int, low: int, rejoined: bool
) -> None:
    trace = NodeTrace()
    for time_ns, written in ((1, 4000), (4, next_end), (5, 5300), (7, low), (9, 5400)):
        trace.add(time_ns, written, 10)
    assert NodeEnds(trace).rejoined(4000, 2, 9) is rejoined
