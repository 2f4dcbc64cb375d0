"""Bugs planted in the product, each found by a test that is named here."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rocketbed.node.broker import offsets
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.store import retention, store
from rocketbed.node.store.removal import Removal
from rocketbed.node.store.unit_queue import UnitQueue
from rocketbed.replication import controller
from rocketbed.replication.confirm import AckBoard
from rocketbed.replication.follow import MasterConnection
from rocketbed.replication.follower import Follower
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.pace import Pace
from tests.mutation.generated import testing
from tests.support.paths import ROOT

LIMIT_S = 60
LATE: Any = 60.0
"""Time of an act that comes too late, seconds."""
Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def _only_itself(view: InSyncView) -> set[tuple[int, int]]:
    return {(view.me, view.entry.in_sync[view.me])}


def _written(connection: MasterConnection) -> int:
    return connection._log.written.value


def _whole_end(follower: Follower) -> int:
    return follower._log.whole_end()


def _up_to(queue: UnitQueue, number: int, log_min: int) -> bool:
    units = queue.unit_at(number), queue.unit_at(number + 1)
    return all(unit is not None and unit[0] <= log_min for unit in units)


class _Kept(dict[str, int]):
    def clear(self) -> None:
        return None


def _forgets_nothing(init: Callable[..., Any]) -> Callable[..., Any]:
    def changed(removal: Removal, *parts: Any) -> None:
        init(removal, *parts)
        removal._learned = _Kept()

    return changed


async def _without_waiting(_pace: Pace, size: int) -> None:
    return None


BUGS: list[tuple[object, str, Change, str]] = [
    (
        controller,
        "refuse_stranger",
        lambda _: lambda request, known: None,
        "sim/test_registration.py::test_invalid_registrations_are_refused",
    ),
    (
        store,
        "lock_store",
        lambda _: lambda world, config: [],
        "unit/node/store/test_limits.py::test_a_store_is_locked_while_it_is_open",
    ),
    (
        retention,
        "_bounded",
        lambda _: lambda value, low, high: low,
        "sim/test_retention.py::test_disk_pressure",
    ),
    (
        MasterConnection,
        "_compare",
        lambda _: lambda self, *place: None,
        "sim/test_replication.py::test_a_slave_with_other_bytes_refuses_its_master",
    ),
    (
        MasterConnection,
        "_acknowledged",
        lambda _: _written,
        "sim/test_replication.py::test_acknowledgements_never_pass_what_a_slave_has",
    ),
    (
        AckBoard,
        "acknowledge",
        lambda _: lambda self, link, offset: None,
        "sim/test_replication.py::test_an_empty_slave_copies_the_whole_log_then_follows",
    ),
    (
        InSyncView,
        "need",
        lambda _: _only_itself,
        "sim/test_leader_confirms.py::test_needs_every_member_of_the_set",
    ),
    (
        Follower,
        "_durable_end",
        lambda _: _whole_end,
        "sim/test_follower.py::test_keeps_what_it_acknowledged",
    ),
    (
        Pace,
        "wait",
        lambda _: _without_waiting,
        "sim/test_leader_catch_up.py::test_sends_files_at_the_configured_rate",
    ),
    (
        offsets,
        "GATHER_S",
        lambda _: LATE,
        "sim/test_client_cluster.py::test_group_starting_at_the_end_survives_a_kill",
    ),
    (
        Offsets,
        "take_changes",
        lambda _: lambda offsets: {},
        "sim/test_failover_tables.py::test_group_begins_where_it_began_under_the_next_leader",
    ),
    (
        UnitQueue,
        "_are_before",
        lambda _: _up_to,
        "sim/test_retention.py::test_queue_keeps_the_file_of_its_first_message",
    ),
    (
        Removal,
        "__init__",
        _forgets_nothing,
        "sim/test_deletions_replicated.py::test_deletion_that_a_cut_took_back_is_learned_again",
    ),
]


@pytest.mark.parametrize(
    ("owner", "name", "change", "test"), BUGS, ids=[f"{row[1]} {row[3]}" for row in BUGS]
)
def test_a_planted_bug_is_found(owner: object, name: str, change: Change, test: str) -> None:
    path = ROOT / "tests" / test
    child = os.fork()
    if child == 0:
        os._exit(_run_planted(owner, name, change, str(path)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1, "the test passes, or does not end"


def _run_planted(owner: object, name: str, change: Change, path: str) -> int:
    """Return 1 if the test fails."""
    signal.alarm(LIMIT_S)
    try:
        setattr(owner, name, change(getattr(owner, name)))
        testing.run_tests(path)
    except testing.TestsFailed:
        return 1
    except BaseException:
        return 2
    return 0
