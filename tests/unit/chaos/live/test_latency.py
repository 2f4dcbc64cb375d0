"""Points of the load: rates by outcome, and latencies."""

from collections import deque

from rocketbed.chaos.live.meter import Meter


def test_quantiles_cover_the_time_since_the_last_point() -> None:
    latencies_ns = deque(range(1_000_000, 101_000_000, 1_000_000))
    meter = Meter({}, latencies_ns)
    point = meter.point(0.5)
    assert (point["p50"], point["p99"]) == (51.0, 100.0)
    latencies_ns.append(7_000_000)
    point = meter.point(1.0)
    assert (point["p50"], point["p99"]) == (7.0, 7.0)


def test_points_are_rates_since_the_point_before() -> None:
    counts = {"ok": 10}
    latencies_ns: deque[int] = deque()
    meter = Meter(counts, latencies_ns)
    meter.point(1.0)
    counts |= {"ok": 60, "fail": 2}
    latencies_ns.append(2_000_000)
    point = meter.point(1.5)
    assert (point["t"], point["ok"], point["weak"], point["fail"]) == (1.5, 100.0, 0.0, 4.0)
    assert point["p50"] == point["p99"] == 2.0
    assert meter.point(2.0) | {"t": 0} == {
        "t": 0, "ok": 0.0, "weak": 0.0, "fail": 0.0, "info": 0.0, "p50": None, "p99": None,
    }  # fmt: skip
