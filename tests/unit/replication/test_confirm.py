"""Confirmed offsets that result from the reports of replicas."""

from dataclasses import dataclass, field
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.replication.confirm import (
    GAP_MAX,
    AckBoard,
    Link,
    certain_slaves,
    count_in_sync,
    is_in_sync,
)
from rocketbed.replication.watermark import Watermark


def connect(board: AckBoard, offset: int, address: str = "", *, offered: int = 0) -> Link:
    """A slave's connection that has acknowledged up to `offset`; each from another host if not
    told, and with `offered` sent before its first report came."""
    link = Link(address or f"host-{len(board.links)}", offered)
    board.join(link)
    acknowledge(board, link, offset)
    return link


def acknowledge(board: AckBoard, link: Link, offset: int) -> None:
    """Everything up to `offset` is sent, and acknowledged."""
    link.offered = max(link.offered, offset)
    board.acknowledge(link, offset)


def test_default_waits_for_no_slave() -> None:
    confirmed = Watermark()
    board = AckBoard(1, confirmed)
    connect(board, 200)
    assert not board.waits
    assert confirmed.value == 0


def test_two_replicas_wait_for_the_fastest_slave() -> None:
    confirmed = Watermark()
    board = AckBoard(2, confirmed)
    assert board.waits
    first, second = connect(board, 100), connect(board, 50)
    assert confirmed.value == 100
    acknowledge(board, second, 300)
    assert confirmed.value == 300
    acknowledge(board, first, 200)
    assert confirmed.value == 300


def test_three_replicas_wait_for_two_slaves() -> None:
    confirmed = Watermark()
    board = AckBoard(3, confirmed)
    slave = connect(board, 500, "one")
    assert confirmed.value == 0
    connect(board, 100, "two")
    assert confirmed.value == 100
    board.leave(slave)
    connect(board, 400, "three")
    assert confirmed.value == 100
    connect(board, 450, "four")
    assert confirmed.value == 400


def test_departed_slave_stops_counting_and_takes_nothing_back() -> None:
    confirmed = Watermark()
    board = AckBoard(2, confirmed)
    slave = connect(board, 100)
    board.leave(slave)
    board.leave(slave)
    assert not board.links
    assert confirmed.value == 100
    connect(board, 40)
    assert confirmed.value == 100


def test_zero_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one replica"):
        AckBoard(0)


def test_two_connections_of_a_slave_are_one_replica() -> None:
    confirmed = Watermark()
    board = AckBoard(3, confirmed)
    old = connect(board, 100, "host")
    new = connect(board, 100, "host", offered=100)
    assert confirmed.value == 0
    # What was on its way on the old one when it was given up proves nothing.
    old.offered = 200
    board.acknowledge(old, 100)
    acknowledge(board, new, 200)
    assert confirmed.value == 0


def test_late_report_makes_no_second_replica() -> None:
    confirmed = Watermark()
    board = AckBoard(3, confirmed)
    new = connect(board, 100, "host")
    late = Link("host", 100)
    board.join(late)
    board.acknowledge(late, 100)
    acknowledge(board, new, 200)
    assert confirmed.value == 0


def test_slaves_of_one_address_count_from_their_first_common_message() -> None:
    confirmed = Watermark()
    board = AckBoard(3, confirmed)
    first = connect(board, 100, "host")
    second = connect(board, 100, "host", offered=100)
    assert confirmed.value == 0
    acknowledge(board, first, 101)
    assert confirmed.value == 0
    acknowledge(board, second, 101)
    assert confirmed.value == 101
    connect(board, 300, "host", offered=101)
    assert confirmed.value == 101
    acknowledge(board, second, 300)
    assert confirmed.value == 300


def test_link_stays_small_however_often_others_dial() -> None:
    board = AckBoard(3, Watermark())
    link = connect(board, 100, "host")
    for _ in range(1000):
        board.leave(connect(board, 0, "host"))
    assert len(link.sent_before) == 1


class Group:
    """Slaves on one host, each reading one connection at a time, and a network that may keep
    anything for any time."""

    def __init__(self, slaves: int, needed: int) -> None:
        self.confirmed = Watermark()
        self.board = AckBoard(needed + 1, self.confirmed)
        self.needed = needed
        self.end = 0
        self.held = [0] * slaves
        self.current: list[Wire | None] = [None] * slaves
        self.wires: list[Wire] = []

    def dial(self, slave: int) -> None:
        wire = self.current[slave] = Wire(slave)
        wire.reports.append(self.held[slave])
        self.wires.append(wire)

    def deliver(self, wire: "Wire") -> None:
        if not wire.reports:
            return
        report = wire.reports.pop(0)
        if wire.link.number:
            self.board.acknowledge(wire.link, report)
        else:
            wire.link.offered = report
            self.board.join(wire.link)

    def send(self, wire: "Wire") -> None:
        if wire.link.number and wire.link.offered < self.end:
            wire.link.offered = self.end
            wire.sent.append(self.end)

    def read(self, wire: "Wire") -> None:
        if wire.sent and self.current[wire.slave] is wire:
            self.held[wire.slave] = wire.sent.pop(0)
            wire.reports.append(self.held[wire.slave])

    def repeat(self, wire: "Wire") -> None:
        """The report of a slave that is idle."""
        if self.current[wire.slave] is wire:
            wire.reports.append(self.held[wire.slave])

    def exchange(self, wire: "Wire") -> None:
        """Make a whole exchange without faults."""
        for step in (self.deliver, self.send, self.read, self.repeat, self.deliver, self.deliver):
            step(wire)

    def check(self) -> None:
        assert self.confirmed.value <= sorted(self.held, reverse=True)[self.needed - 1]


class Wire:
    def __init__(self, slave: int) -> None:
        self.slave = slave
        self.link = Link("host")
        self.reports: list[int] = []
        self.sent: list[int] = []


ACTS = ("append", "dial", "exchange", "deliver", "send", "read", "repeat")


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 2)), max_size=60))
def test_counted_bytes_are_held_however_slow_the_network(acts: list[tuple[str, int]]) -> None:
    group = Group(slaves=2, needed=2)
    for act, number in acts:
        if act == "append":
            group.end += 1
        elif act == "dial":
            group.dial(number % 2)
        elif group.wires:
            wire = group.wires[-1 - number % len(group.wires)]
            getattr(group, act)(wire)
        group.check()


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 6))
def test_kth_highest_address_counts(offsets: list[int], slaves: int) -> None:
    confirmed = Watermark()
    board = AckBoard(slaves + 1, confirmed)
    for offset in offsets:
        connect(board, offset)
    ranked = sorted(offsets, reverse=True)
    assert confirmed.value == (ranked[slaves - 1] if len(ranked) >= slaves else 0)


def test_in_sync_means_within_the_gap() -> None:
    assert is_in_sync(1000, 901, 100)
    assert not is_in_sync(1000, 900, 100)
    assert is_in_sync(GAP_MAX, 1)
    assert not is_in_sync(GAP_MAX, 0)
    assert count_in_sync(1000, [1000, 950, 900, 0], 100) == 2
    assert count_in_sync(9, [9, 8, 7, 6, 5], 3) == 3


@dataclass
class Use:
    """Range of moments at which a link was certainly in use, and its acknowledgement."""

    link: Link
    first: int
    last: int = 0
    offset: int = 0
    offered_at: dict[int, int] = field(default_factory=dict)
    """Number of each later link of the address, and the end of what was offered then."""


def most_at_once(uses: list[Use], offset: int) -> int:
    """Count slaves with this acknowledgement: of each address, most links in use together."""
    total = 0
    for address in "ab":
        some = [use for use in uses if use.link.address == address and use.offset >= offset]
        total += max(
            (
                size
                for size in range(1, len(some) + 1)
                for group in combinations([use for use in some if use.first <= use.last], size)
                if max(use.first for use in group) <= min(use.last for use in group)
            ),
            default=bool(some),
        )
    return total


@pytest.mark.parametrize("seed", range(120))
def test_links_in_use_together_count_as_slaves(seed: int) -> None:
    random = Random(seed)
    needed, confirmed = random.randrange(1, 4), Watermark()
    board, expected = AckBoard(needed + 1, confirmed), 0
    uses, joined = list[Use](), 0
    for _ in range(40):
        draw = random.random()
        if not uses or draw < 0.25:
            joined += 1
            use = Use(Link(random.choice("ab"), offered=random.randrange(9)), joined)
            uses.append(use)
            for earlier in uses:
                if earlier.link.address == use.link.address:
                    earlier.offered_at[joined] = earlier.link.offered
            board.join(use.link)
            continue
        use = random.choice(uses)
        if draw < 0.5:
            use.link.offered += random.randrange(3)
        elif draw < 0.93:
            use.offset = random.randrange(use.link.offered + 2)
            later = [number for number, end in use.offered_at.items() if end < use.offset]
            use.last = max([use.last, *later])
            board.acknowledge(use.link, use.offset)
            ends = [use.offset for use in uses if most_at_once(uses, use.offset) >= needed]
            expected = max([expected, *ends])
        else:
            board.leave(use.link)
            uses.remove(use)
        assert [(link.number, link.in_use_until) for link in board.links] == [
            (use.first, use.last) for use in uses
        ]
        assert confirmed.value == expected
        assert certain_slaves([use.link for use in uses]) == most_at_once(uses, 0)
