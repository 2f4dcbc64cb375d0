"""The audit's numbers and drawings, without Spark."""

import re

import pytest

from rocketbed.pipeline.jobs.audit.job import BUCKETS_MAX, bucket_of
from rocketbed.pipeline.jobs.audit.page import balance, bars, curves, in_bytes, short


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0, 1), (240, 1), (241, 5), (3600, 15), (86_400, 900), (10**9, 604_800)]
)
def test_a_bucket_fits_the_span(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket
    assert seconds / bucket <= BUCKETS_MAX or bucket == 604_800


@pytest.mark.parametrize(
    ("value", "shown_text"), [(0, "0"), (999, "999"), (999.6, "1k"), (1234, "1.23k"), (5e9, "5G")]
)
def test_numbers_are_short(value: float, shown_text: str) -> None:
    assert short(value) == shown_text


@pytest.mark.parametrize(("value", "shown_text"), [(5, "5 B"), (1024, "1 KiB"), (3 << 20, "3 MiB")])
def test_sizes_have_units(value: float, shown_text: str) -> None:
    assert in_bytes(value) == shown_text


def test_bars_start_at_the_axis_and_keep_gaps() -> None:
    drawing = bars([(0, 10.0), (3000, 5.0)], 1000, short)
    places = re.findall(
        r'class="bar" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing
    )
    (x, y, width, height), (x2, y2, _, height2) = (tuple(map(float, one)) for one in places)
    assert y + height == pytest.approx(y2 + height2, abs=0.2)
    assert height == pytest.approx(2 * height2, abs=0.2)
    assert x2 > x + 2.5 * width


def test_a_line_leaves_out_what_is_not_known() -> None:
    drawing = curves([[(0, 1.0), (1, None), (2, 3.0)], []], ["p50", "p99"])
    assert drawing.count("<circle") == 2
    assert 'class="p99" points=""' in drawing


def test_balance_shows_the_worst_first() -> None:
    rows = [
        {"broker": "b", "topic": topic, "messages": count}
        for topic, counts in (("even", (5, 5)), ("skewed", (9, 1)))
        for count in counts
    ]
    first, second = balance(rows)
    assert (first["topic"], first["least"], first["most"], first["skew"]) == ("skewed", 1, 9, 1.8)
    assert (second["topic"], second["skew"], second["queues"]) == ("even", 1.0, 2)
