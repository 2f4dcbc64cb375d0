"""The page of a run, its JUnit file and the lines on the console, from real simulated runs."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rocketbed.chaos.demo.bug import plant
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.report.svg import thin, ticks
from rocketbed.chaos.report.text import summary_text
from rocketbed.chaos.report.words import clock, grouped, length
from rocketbed.chaos.search.runner import Options, Outcome, run_plan


def plan() -> Plan:
    """A short run with a kill, a promotion and a cut."""
    steps = (
        "at 2s kill leader as k",
        "after k+500ms promote follower:longest",
        "after k+2s restart @k",
        "at 6s partition b1 -> others for 1s",
    )
    return Plan(
        name="page",
        quick=True,
        seed=1,
        shape=Shape(brokers=3, flush="sync"),
        producers=Producers(count=2, rate=5.0),
        consumers=Consumers(count=2),
        steps=tuple(map(parse_step, steps)),
        faults_s=8.0,
        recovery_s=6.0,
    )


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], tuple[Outcome, Path]]:
    """Run with or without a planted bug; each made at most once."""
    runs: dict[bool, tuple[Outcome, Path]] = {}

    def get(planted: bool) -> tuple[Outcome, Path]:
        if planted not in runs:
            directory = tmp_path_factory.mktemp("run") / "run"
            options = Options(before=plant if planted else None)
            runs[planted] = run_plan(plan(), options, directory=directory), directory
        return runs[planted]

    return get


class Links(HTMLParser):
    """Links of a page, and everything it fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.anchors: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        self.ids.add(fields.get("id") or "")
        for name in ("src", "data", "action"):
            if fields.get(name):
                self.fetched.append(str(fields[name]))
        if tag == "link":
            self.fetched.append(str(fields.get("href")))
        if tag == "a" and fields.get("href"):
            self.anchors.append(str(fields["href"]))


def page_of(outcome: Outcome, directory: Path) -> str:
    assert outcome.judgement is not None, outcome.error
    assert outcome.record is not None
    page = write_report(directory, outcome.judgement, outcome.record)
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("planted", [False, True])
def test_page_is_self_contained_and_its_links_work(
    run_of: Callable[[bool], tuple[Outcome, Path]], planted: bool
) -> None:
    text = page_of(*run_of(planted))
    links = Links()
    links.feed(text)
    assert links.fetched == []
    assert not re.search(r"url\(|@import", text)
    assert all(anchor.startswith("#") for anchor in links.anchors)
    assert {anchor[1:] for anchor in links.anchors} <= links.ids
    assert len(text) < 1_500_000


def test_passing_page_lists_promises_and_losses(
    run_of: Callable[[bool], tuple[Outcome, Path]],
) -> None:
    outcome, directory = run_of(False)
    text = page_of(outcome, directory)
    assert outcome.verdict == "pass"
    assert "Every promise was kept." in text
    assert "sync flush, 2 copies" in text
    assert "lost 0 of" in text
    assert 'class="cause"' not in text
    assert "<strong" not in text
    facts = text[text.index('<dl class="facts">') : text.index("</dl>")]
    assert "longest time without one " in facts
    assert "b3 took over" in facts or "b2 took over" in facts
    assert outcome.judgement is not None
    assert outcome.record is not None
    lines = summary_text(outcome.judgement, outcome.record).splitlines()
    writes = [line.partition("   ")[2] for line in lines if line.startswith("writes:")]
    assert writes
    assert all(line in facts for line in writes)
    (checks,) = [line for line in lines if line.startswith("checks:")]
    assert re.fullmatch(r"checks:   \d+ held, 0 violated, \d+ do not apply .*", checks)
    assert f"--seed {outcome.plan.seed} --quick</code>" in text
    assert 'class="passed"><summary>' in text
    assert text.count("<svg") == 3 + 3
    for step in outcome.record.steps:
        assert parse_step(step).to_the_millisecond().action().replace(">", "&gt;") in text
    assert "0:02.000 kill b1 as k" in text


def test_steps_that_never_came_about_are_named(tmp_path: Path) -> None:
    never = "when acked>99999999 kill leader for 1s as k"
    after = "after k+1s powercut follower:any for 1s"
    vain = "at 3s crash b1 at mark store.retention_removed within 2s as c"
    drawn = "at 4s kill b2 with p=1e-9 as d", "after d+1s restart b2"
    steps = (never, after, vain, "after c+1s kill b2", *drawn)
    failing_plan = replace(plan(), steps=tuple(map(parse_step, steps)))
    outcome = run_plan(failing_plan, Options(), directory=tmp_path / "run")
    assert outcome.record is not None
    assert outcome.judgement is not None
    lines = summary_text(outcome.judgement, outcome.record).splitlines()
    assert "broken:   nothing" in lines
    assert [line for line in lines if "not done" in line] == [
        "  not done: at 3s crash b1 mark store.retention_removed within 2s as c: nobody came to it",
        f"  not done: {never}: it was never due",
        f"  not done: {after}: it was never due",
        "  not done: after c+1s kill b2: it was never due",
    ]


def test_failing_page_names_the_finding_and_its_surroundings(
    run_of: Callable[[bool], tuple[Outcome, Path]],
) -> None:
    outcome, directory = run_of(True)
    text = page_of(outcome, directory)
    assert outcome.verdict == "anomaly"
    assert "A promise was broken." in text
    assert 'id="check-acked-before-durable"' in text
    assert outcome.judgement is not None
    first = outcome.judgement.result("acked-before-durable").examples[0]
    assert grouped(first.text) in text
    assert 'class="cause"' in text
    assert text.index("acknowledged before the promise was kept") < text.index("A promise")
    cases = ElementTree.parse(directory / "junit.xml").getroot()
    failed = [case.get("name", "") for case in cases if case.find("failure") is not None]
    assert [name.partition(" ")[0] for name in failed] == outcome.finding_ids
    assert int(cases.get("failures", "0")) == len(failed)


def test_the_console_ends_with_verdict_loss_and_findings(
    run_of: Callable[[bool], tuple[Outcome, Path]],
) -> None:
    outcome, _ = run_of(True)
    assert outcome.judgement is not None
    assert outcome.record is not None
    lines = summary_text(outcome.judgement, outcome.record).splitlines()
    assert lines[0].startswith("ANOMALY  page, seed 1, sim")
    (place,) = [n for n, line in enumerate(lines) if "FINDING acked-before-durable" in line]
    assert lines[place + 1].startswith("      required: The master and as many nodes as promised")
    assert any(line.startswith("loss:     allowed") for line in lines)


def test_console_explains_inapplicable_checks_on_request(
    run_of: Callable[[bool], tuple[Outcome, Path]],
) -> None:
    outcome, _ = run_of(False)
    assert outcome.judgement is not None
    assert outcome.record is not None
    short = summary_text(outcome.judgement, outcome.record)
    assert "do not apply (--explain says why)" in short
    assert "no topic is ordered" not in short
    full = summary_text(outcome.judgement, outcome.record, explain=True)
    assert "--explain" not in full
    assert "  order-violation: no topic is ordered" in full.splitlines()


def test_thinning_keeps_the_extremes_of_each_column() -> None:
    points = [(float(number), float(number % 7)) for number in range(10_000)]
    points[5_000] = (5_000.0, 99.0)
    thinned = thin(points, 100)
    assert len(thinned) < 600
    assert (5_000.0, 99.0) in thinned
    assert thinned[0] == points[0]
    assert thinned[-1] == points[-1]
    assert thinned == sorted(thinned)


@pytest.mark.parametrize(("low", "high"), [(0.0, 60.0), (0.0, 0.3), (5.0, 5.0), (0.0, 1e9)])
def test_ticks_are_round_and_within(low: float, high: float) -> None:
    positions = ticks(low, high, 10)
    assert 1 <= len(positions) <= 11
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in positions)


@pytest.mark.parametrize(
    ("time_s", "digits", "words"),
    [(0, 0, "0:00"), (59.9996, 3, "1:00.000"), (1.715, 3, "0:01.715"), (-5, 0, "-0:05"),
     (3_661, 0, "61:01")],
)  # fmt: skip
def test_a_moment_is_minutes_and_seconds(time_s: float, digits: int, words: str) -> None:
    assert clock(time_s, digits) == words


def test_thousands_are_grouped_outside_of_names() -> None:
    assert grouped("12569 B above 999, 1715.5") == "12,569 B above 999, 1715.5"
    assert grouped("b1-2024 at 68a58fcc3301") == "b1-2024 at 68a58fcc3301"
    assert grouped("--set size=1048576") == "--set size=1048576", "it may be copied"
    assert [length(0.04), length(6), length(125)] == ["40 ms", "6.0 s", "2:05 min"]
