"""The report's page: everything in it, nothing from elsewhere, no peak lost."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from chaos.checkers.result import judged, not_run
from chaos.demo.charts import Chart, Line, draw, thin, ticks
from chaos.demo.report import command_again, rates, render, write_report
from chaos.demo.verdict import DemoVerdict

MIB = 1 << 20


def verdict_row(*, broken: bool = False) -> dict[str, Any]:
    verdict = DemoVerdict(seed=5, checks=[judged("A1 lost write", 2, "messages", [])])
    if broken:
        verdict.checks.append(
            judged("A8 moved write", 3, "places", [f"value <{n}> moved" for n in range(40)])
        )
        verdict.checks.append(not_run("D3 killed in recovery", "kills", "the recovery was over"))
    verdict.facts = {
        "version": "0.1.0",
        "machine": {"system": "Linux", "python": "3.11", "node": "x"},
        "when": "2026-01-01T00:00:00+00:00",
        "seconds": {"running": 3.0, "in_all": 4.5},
        "options": {"messages": 1000, "flush": "sync", "store": None},
        "loss": {"allowed": 0, "lost": 0, "acknowledged": 12345},
        "counts": {"acknowledged": 12345, "weak": 0, "refused": 7, "unknown": 2},
        "starts": [
            {
                "node": "master",
                "reason": "killed with 3 messages in flight",
                "abort_found": True,
                "at_s": 1.2,
                "serving_s": 0.4,
                "recovery_s": 0.11,
                "records": 500,
                "scanned_bytes": MIB,
                "killed": "",
            }
        ],
        "kills": [
            {
                "node": "master",
                "target": "master-writing",
                "at_s": 1.0,
                "in_flight": 3,
                "abort_left": True,
                "hit": True,
                "outage_s": 0.7,
            }
        ],
        "nodes": {
            "master": {
                "at_s": [0.0, 0.5, 1.0, 1.5, 2.0],
                "written": [0, MIB, None, 2 * MIB, 3 * MIB],
                "flushed": [0, 0, None, 2 * MIB, 3 * MIB],
            }
        },
        "load": {
            "at_s": [0.0, 0.5, 1.0, 1.5, 2.0],
            "acknowledged": [0, 100, 300, 300, 900],
            "physical": [-1, MIB, MIB, MIB, 3 * MIB],
        },
        "holds": [[1.6, 1.9]],
        "old": None,
        "kept": None,
    }
    return verdict.as_row()


class Page(HTMLParser):
    """Collects what a page refers to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_page_needs_nothing_but_itself() -> None:
    page = Page(render(verdict_row(broken=True)))
    assert not {"script", "link", "img", "iframe", "object"}.intersection(page.tags)
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert "url(" not in render(verdict_row())


def test_findings_are_linked_and_escaped() -> None:
    text = render(verdict_row(broken=True))
    page = Page(text)
    assert {link[1:] for link in page.links} <= page.ids
    assert "value <31> moved" in page.words
    assert "<31>" not in text
    assert "8 more" in page.words
    assert "the recovery was over" in page.words
    assert "anomaly" in page.words


def test_a_good_page_says_so() -> None:
    page = Page(render(verdict_row()))
    for words in ("pass", "Every check ran", "12\u202f345", "0.11\u202fs", "1.0\u202fMiB", "sync"):
        assert words in page.words
    assert "Findings" not in page.words
    assert "None" not in page.words
    assert page.tags.count("svg") == 4


def test_a_trial_that_failed_early_has_a_page_too(tmp_path: Path) -> None:
    verdict = DemoVerdict(seed=1, error="master ended with code 1")
    path = write_report(tmp_path, {**verdict.as_row(), "kept": "/x"})
    page = Page(path.read_text(encoding="utf-8"))
    assert "master ended with code 1" in page.words
    assert "harness-error" in page.words


def test_the_command_asks_for_the_same_trial() -> None:
    row = verdict_row()
    assert command_again(row) == "rocketbed demo --seed 5 --messages 1000 --flush sync"
    row["options"]["store"] = "/data"
    assert command_again(row).endswith("--store /data")
    assert command_again(DemoVerdict(seed=3).as_row()) == "rocketbed demo --seed 3"


def test_rates_count_over_a_window() -> None:
    at_s = [number / 10 for number in range(11)]
    counts = [number * 100 for number in range(11)]
    found = rates(at_s, counts)
    assert [at for at, _ in found] == at_s[1:]
    assert all(value == pytest.approx(1000) for _, value in found)
    assert rates([0.0], [0]) == []


@pytest.mark.parametrize("top", [0.0, 0.3, 1.0, 7.0, 58.0, 6900.0, 123456.0])
def test_ticks_are_round_and_within(top: float) -> None:
    found = ticks(top, 4)
    assert found[0] == 0
    assert all(value <= top * 1.000001 for value in found)
    assert len(found) <= 6
    if top:
        assert len(found) >= 3


def test_thinning_keeps_peaks_and_gaps() -> None:
    points: list[tuple[float, float | None]] = [(float(n), 1.0) for n in range(10_000)]
    points[1234] = (1234.0, 99.0)
    points[4321] = (4321.0, -5.0)
    points[7777] = (7777.0, None)
    kept = thin(points, 100)
    assert len(kept) <= 500
    for point in (points[0], points[1234], points[4321], points[7777], points[-1]):
        assert point in kept
    assert kept == sorted(kept)
    assert thin(points[:50], 100) == points[:50]


def test_a_gap_breaks_the_line() -> None:
    chart = Chart(
        title="a <b>",
        end_s=3.0,
        lines=[Line("x", "written", [(0.0, 1.0), (1.0, None), (2.0, 2.0), (3.0, 1.0)])],
        top=2.0,
    )
    text = draw(chart)
    assert text.count("<polyline") == 4, "two stretches, wide and narrow"
    assert "a &lt;b&gt;" in text
    heights = re.findall(r'points="[\d.]+,([\d.]+) [\d.]+,([\d.]+)"', text)
    assert all(22 <= float(y) <= 164 for pair in heights for y in pair)
