"""Counting times of sends."""

from random import Random

import pytest

from rocketbed.chaos.live.meter import Meter
from rocketbed.chaos.trial.latency import SIZE, Latencies, quantiles


@pytest.mark.parametrize("time_ns", [0, 999, 1_000, 7_999, 50_000, 3_000_000, 12_345_678_901])
def test_a_time_is_kept_within_an_eighth(time_ns: int) -> None:
    latencies = Latencies()
    latencies.note(time_ns)
    (found,) = quantiles([0] * SIZE, latencies.counts, [0.5])
    assert found is not None
    assert time_ns / 1e9 <= found <= time_ns / 1e9 * 1.126 + 1.001e-6


def test_quantiles_of_many_are_near_the_true_ones() -> None:
    random = Random(7)
    times = [random.lognormvariate(15, 1) for _ in range(20_000)]
    latencies = Latencies()
    for time in times:
        latencies.note(round(time))
    times.sort()
    for share, found in zip(
        (0.5, 0.99), quantiles([0] * SIZE, latencies.counts, (0.5, 0.99)), strict=True
    ):
        assert found == pytest.approx(times[int(share * len(times))] / 1e9, rel=0.14)


def test_what_is_beyond_all_counters_goes_into_the_last() -> None:
    latencies = Latencies()
    latencies.note(1 << 80)
    latencies.note(-5)
    assert latencies.counts[-1] == 1
    assert latencies.counts[0] == 1


def test_nothing_new_has_no_latency() -> None:
    latencies = Latencies()
    latencies.note(1_000_000)
    assert quantiles(latencies.counts, latencies.counts, (0.5, 0.99)) == [None, None]


def test_points_are_rates_since_the_point_before() -> None:
    counts = {"ok": 10}
    latencies = Latencies()
    meter = Meter(counts, latencies)
    meter.point(1.0)
    counts |= {"ok": 60, "fail": 2}
    latencies.note(2_000_000)
    point = meter.point(1.5)
    assert (point["t"], point["ok"], point["weak"], point["fail"]) == (1.5, 100.0, 0.0, 4.0)
    assert point["p50"] == point["p99"] == pytest.approx(2.0, rel=0.13)
    assert meter.point(2.0) | {"t": 0} == {
        "t": 0, "ok": 0.0, "weak": 0.0, "fail": 0.0, "info": 0.0, "p50": None, "p99": None,
    }  # fmt: skip
