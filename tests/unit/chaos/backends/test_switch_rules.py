"""Decisions about packets: when each is delivered, and whether."""

from random import Random

import pytest

from rocketbed.chaos.backends.process.network.switch.resets import ACK, make_segment
from rocketbed.chaos.backends.process.network.switch.rules import (
    BACKLOG_S,
    WAITING_MAX,
    Path,
)
from rocketbed.chaos.run.links import HEALTHY, LinkState

KEY = bytes((10, 98, 0, 1, 10, 98, 0, 2, 0x12, 0x34, 0x2A, 0x9F))
OTHER = KEY[:8] + bytes((0x12, 0x35, 0x2A, 0x9F))
DATA = make_segment(KEY, 1, ACK) + bytes(960)
"""1000 bytes."""


def path(state: LinkState, seed: str = "seed") -> Path:
    link_path = Path(Random(seed))
    assert link_path.set(state) == []
    return link_path


def deliveries(link_path: Path, count: int, step_s: float = 0.001) -> list[float]:
    """Delays of so many packets, one each step; in the order in which they were sent."""
    sent_and_due = [(n * step_s, link_path.delivery_time(DATA, n * step_s)) for n in range(count)]
    return [due - sent for sent, due in sent_and_due if due is not None]


def test_path_without_a_rule_reports_it() -> None:
    assert path(HEALTHY).is_plain
    assert not path(LinkState(delay_s=0.1)).is_plain


def test_delay_and_jitter_stay_in_bounds_and_order() -> None:
    link_path = path(LinkState(delay_s=0.05, jitter_s=0.01))
    due_times = [link_path.delivery_time(DATA, n / 1000) or 0.0 for n in range(1000)]
    assert due_times == sorted(due_times)
    assert all(0.05 <= time - n / 1000 <= 0.06 for n, time in enumerate(due_times))
    assert len({round(time - n / 1000, 6) for n, time in enumerate(due_times)}) > 100


def test_a_share_is_lost() -> None:
    link_path = path(LinkState(loss=0.2))
    count = 0
    for _ in range(20_000):
        if link_path.delivery_time(DATA, 0.0) is not None:
            link_path.arrived()
            count += 1
    assert abs(count / 20_000 - 0.8) < 0.02


def test_rate_spreads_packets_and_drops_late_ones() -> None:
    link_path = path(LinkState(rate=100_000))
    delays = deliveries(link_path, 100, 0.0)
    assert delays == pytest.approx([(n + 1) / 100 for n in range(len(delays))])
    assert len(delays) == pytest.approx(BACKLOG_S * 100, abs=2)
    assert link_path.dropped == 100 - len(delays)


def test_cut_ends_with_the_newest_packet_of_each_connection() -> None:
    link_path = path(LinkState(cut=True, delay_s=1.0))
    newest, second = DATA[:-1] + b"n", make_segment(OTHER, 1, ACK)
    for packet in (DATA, second, newest):
        assert link_path.delivery_time(packet, 0.0) is None
    assert link_path.set(LinkState(cut=True)) == []
    assert link_path.set(HEALTHY) == [second, newest]
    assert link_path.set(LinkState(cut=True)) == link_path.set(HEALTHY) == []


def test_packets_under_way_are_limited() -> None:
    link_path = path(LinkState(delay_s=60.0))
    for _ in range(WAITING_MAX):
        assert link_path.delivery_time(DATA, 0.0) == 60.0
    assert link_path.delivery_time(DATA, 0.0) is None
    link_path.arrived()
    assert link_path.delivery_time(DATA, 0.0) == 60.0


def test_the_same_seed_decides_the_same() -> None:
    state = LinkState(loss=0.1, jitter_s=0.01)
    assert deliveries(path(state), 500) == deliveries(path(state), 500)
    assert deliveries(path(state), 500) != deliveries(path(state, "other"), 500)
