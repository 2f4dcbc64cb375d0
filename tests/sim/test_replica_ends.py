"""A replica that finds its own log unreadable ends, so that somebody sees to it; and the ends of
logs at which two leaders followed each other."""

import errno
from typing import NoReturn

import pytest

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.store import MessageStore
from tests.support.sim.failover_nodes import FailoverNodes
from tests.support.sim.store_session import flip_bit


def test_a_follower_that_cannot_read_its_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> NoReturn:
        raise CorruptRecord("no record at 7", offset=7)

    with FailoverNodes() as group:
        group.simulation.tolerate_crashes = True
        leader = group.settle()
        followers = [one for one in group.names if one != leader]
        for name in followers:
            monkeypatch.setattr(group.nodes[name].store.epochs, "_undispatched", unreadable)
        group.simulation.kill(leader)
        group.wait(lambda: any(group.simulation.process(one).state == "dead" for one in followers))


def put(store: MessageStore, size: int) -> None:
    """Put a record of `size` bytes, as small as possible."""
    run = store.begin()
    host = store.log.tail.store_host_bytes
    run.add("T", 0, bytes(size - 92), b"", flag=0, sys_flag=0, born_ms=1, born_host=host)
    store.commit(run)


def fill(group: FailoverNodes) -> tuple[str, int, list[int]]:
    """Have all hold a log whose file has room for a record of 93 bytes, and not for the marker of
    an epoch, and the leader alone such a record; who that is, where the others end, and where
    records of the log begin."""
    first = group.settle()
    store, process = group.nodes[first].store, group.simulation.process(first)
    size, begins = store.log.segment_size, list[int]()
    while (room := size - store.log.written.value % size - 118) > 0:
        begins.append(store.log.written.value)
        process.call(put, store, room if room < 4000 else 2000)
    end = store.log.written.value
    logs = [group.nodes[one].store.log for one in group.names]
    group.wait(lambda: all(log.written.value == end for log in logs))
    process.call(put, store, 93)
    return first, end, begins


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("more", [0, 1000])
def test_record_in_place_of_the_leaders_filler_is_cut_off(more: int, is_repeated: bool) -> None:
    """The marker of its epoch had no room where a smaller record has, which no other replica got,
    nor anything after it: by the epochs the two logs are the same up to there.
    """
    with FailoverNodes(1) as group:
        first, end, _ = fill(group)
        followers = [one for one in group.names if one != first]
        numbers = {int(one[-1]) for one in followers}
        store = group.nodes[first].store
        size = store.log.segment_size
        if more:
            group.simulation.process(first).call(put, store, more)
        group.simulation.kill(first)
        group.wait(lambda: group.leader() in followers)
        if is_repeated:
            second = group.leader()
            group.wait(lambda: set(group.entry.in_sync) == numbers if group.entry else False)
            group.hand_over(second)
            group.wait(lambda: group.leader() not in ("", second))
        group.start(first)
        group.settle()
        logs = [group.nodes[name].store.log for name in group.names]
        ends = [log.read(end, size - end) for log in logs]
        assert ends[0] == ends[1] == ends[2], "what fills the file"


@pytest.mark.parametrize("trouble", ["rotten", "unreadable"])
def test_nothing_is_cut_where_the_leaders_log_is_damaged(trouble: str) -> None:
    """Its own copy is no measure then: the former leader's bytes may be the last good ones."""
    with FailoverNodes(1) as group:
        first, end, begins = fill(group)
        followers = [one for one in group.names if one != first]
        log = group.nodes[first].store.log
        base = end - end % log.segment_size
        held = log.read(base, end - base)
        group.simulation.kill(first)
        group.wait(lambda: group.leader() in followers)
        second = group.leader()
        disk = group.simulation.process(second).disk
        path = f"/store/commitlog/{base:020d}"
        if trouble == "rotten":
            middle = begins[len(begins) * 2 // 3]
            flip_bit(disk, path, 8 * (middle + 2 - base))  # of its size
        group.simulation.run(3)
        if trouble == "unreadable":
            fault = SimFault(operation="read", path=path, error=errno.EIO, times=None)
            disk.faults.append(fault)
        group.simulation.kill(next(one for one in followers if one != second))
        group.start(first)
        group.simulation.run(10)
        log = group.nodes[first].store.log
        assert log.written.value == end + 93
        assert log.read(base, end - base) == held
        lost = [line for line in group.simulation.log if line.event == "member.link_lost"]
        assert len(lost) < 50, "it is refused, twice a second, with the reason"
