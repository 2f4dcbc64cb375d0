"""Many seeds: which exit code wins, what is kept, what is skipped."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from rocketbed.chaos.checks.judgement import Judgement, clear_place
from rocketbed.chaos.checks.liveness.service import UNASKED
from rocketbed.chaos.checks.result import judged, not_applicable
from rocketbed.chaos.evidence.record import RUN_FILE, Expectation, Promise, RunRecord
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.search.campaign import (
    Campaign,
    CampaignOptions,
    CrashPoints,
    run_campaign,
    run_key,
)
from rocketbed.chaos.search.runner import Options, Outcome
from rocketbed.cli.main import main

MISSED = 2
"""The seed that cannot meet what is expected."""


def make(seed: int, _backend: str, _quick: bool) -> Plan:
    return Plan(
        name="small",
        seed=seed,
        shape=Shape(brokers=1, nameservers=1, repl="async"),
        producers=Producers(count=1, rate=5),
        consumers=Consumers(count=1),
        faults_s=1.0,
        recovery_s=2.0,
        expect=Expectation(progress=(100_000, 0.5) if seed == MISSED else None),
    )


FAMILY = Family(name="small", make=make)


@pytest.mark.parametrize(
    ("codes", "wins"),
    [((1, 3), 1), ((3, 2), 3), ((2, 6), 2), ((6, 7), 6), ((7, 0), 7), ((5, 0), 5), ((1, 7, 0), 1)],
)
def test_the_gravest_exit_code_wins_in_any_order(codes: tuple[int, ...], wins: int) -> None:
    for order in permutations(codes):
        campaign = Campaign(FAMILY)
        for code in order:
            campaign.add_exit(code)
        assert campaign.exit_code == wins


@pytest.mark.slow
def test_failing_seed_is_kept_and_replayable(tmp_path: Path) -> None:
    lines: list[str] = []
    options = CampaignOptions(seeds=(1, MISSED, 3), report=tmp_path, shrink=False)
    result = run_campaign(FAMILY, options, lines.append)
    assert (result.counts, result.exit_code) == ({"pass": 2, "stalled": 1}, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"FAIL-small-{MISSED}.rbx",
        f"small-{MISSED}-sim",
    ]
    assert (tmp_path / f"small-{MISSED}-sim" / "index.html").exists()
    assert any(line.startswith(f"seed {MISSED}: stalled  progress") for line in lines)


def test_many_runs_say_how_many_and_how_long(tmp_path: Path) -> None:
    lines: list[str] = []
    options = CampaignOptions(options=Options(instead=lambda: "digest"), seeds=(1, 3), jobs=1)
    result = run_campaign(FAMILY, options, lines.append)
    assert lines[0] == "2 runs of small, 1 at a time"
    assert lines[1].startswith("seed 1: pass  (0 ok, ")
    assert lines[1].endswith(" real s)")
    assert lines[2].startswith("1 of 2 runs done, about ")
    assert lines[2].endswith(" of real time left")
    assert result.real_s > 0


def test_a_capability_that_is_missing_skips_the_whole(tmp_path: Path) -> None:
    family = Family(name="small", make=make, needs=("net.cut",))
    options = Options(backend="process", net="plain")
    for strict, code in ((False, 0), (True, 5)):
        campaign = CampaignOptions(options=options, seeds=(1,), report=tmp_path, strict=strict)
        result = run_campaign(family, campaign, lambda line: None)
        (outcome,) = result.outcomes
        assert (outcome.verdict, result.exit_code) == ("skipped", code), outcome.error
        assert outcome.record is not None
        assert outcome.record.skipped[0].startswith("all of small, which needs net.cut: ")


@pytest.mark.parametrize(
    ("seeds", "ran_in", "code", "never"),
    [
        (200, None, 6, ["write-after-disk-failure"]),
        (200, 150, 0, []),
        (199, None, 0, ["write-after-disk-failure"]),
    ],
)
def test_large_campaign_fails_for_a_check_that_never_ran(
    monkeypatch: pytest.MonkeyPatch, seeds: int, ran_in: int | None, code: int, never: list[str]
) -> None:
    def run_many(plans: Iterable[Plan], *_: object, **__: object) -> Iterator[Outcome]:
        for plan in plans:
            idle = not_applicable("write-after-disk-failure", "errors", "no disk failed")
            unasked = not_applicable("recovery-time", "producers", UNASKED)
            ran = judged("write-after-disk-failure", 1, "errors", [])
            results = [judged("lost-write", 1, "messages", []), unasked]
            results.append(ran if plan.seed == ran_in else idle)
            record = RunRecord(scenario="x", backend="sim", seed=1, promise=Promise(), groups={})
            judgement = Judgement(record=record, results=results)
            yield Outcome(plan=plan, backend="sim", record=record, judgement=judgement)

    monkeypatch.setattr("rocketbed.chaos.search.campaign.run_many", run_many)
    family = replace(FAMILY, seeds={"sim": 200})
    options = CampaignOptions(seeds=range(seeds), check_share=0.0)
    result = run_campaign(family, options, lambda line: None)
    assert (result.counts, result.exit_code, result.never_ran) == ({"pass": seeds}, code, never)
    assert run_campaign(FAMILY, options, lambda line: None).exit_code == 0, "twenty are usual"


def test_a_place_is_cleared_of_runs_only(tmp_path: Path) -> None:
    clear_place(tmp_path / "absent")
    run = tmp_path / "run"
    run.mkdir()
    clear_place(run)
    assert not run.exists()
    run.mkdir()
    (run / RUN_FILE).write_text("{}")
    clear_place(run)
    assert not run.exists()
    run.mkdir()
    (run / "precious").write_text("mine")
    with pytest.raises(ScenarioError, match="choose another --report"):
        clear_place(run)
    assert (run / "precious").exists()


def test_a_seed_with_a_death_at_many_places(tmp_path: Path) -> None:
    lines: list[str] = []
    points = CrashPoints(node="b1", power=True, sample=3)
    options = CampaignOptions(seeds=(MISSED,), report=tmp_path, shrink=False, crash_points=points)
    with pytest.raises(ScenarioError, match="the disk of b1 does not change"):
        run_campaign(FAMILY, options, lines.append)
    family = replace(FAMILY, make=lambda *args: replace(make(*args), faults_s=3.0))
    result = run_campaign(family, options, lines.append)
    assert result.counts == {"stalled": 3}
    keys = {run_key(outcome.plan) for outcome in result.outcomes}
    assert len(keys) == 3
    assert set(result.replays) == keys
    for key in keys:
        event = key.removeprefix(f"small-{MISSED}-at-")
        assert (tmp_path / f"FAIL-{key}.rbx").exists()
        assert (tmp_path / f"{key}-sim" / "index.html").exists()
        assert any(f"death at disk event {event}: stalled" in line for line in lines)


def test_corpus_grows_and_seeds_vary_its_plans(tmp_path: Path) -> None:
    options = CampaignOptions(seeds=(1, 3), jobs=1, corpus=tmp_path)
    first = run_campaign(FAMILY, options, lambda line: None)
    assert first.new_points > 0
    corpus_files = list(tmp_path.glob("small-*.json"))
    assert corpus_files
    second_campaign = run_campaign(FAMILY, replace(options, seeds=(1,)), lambda line: None)
    assert second_campaign.outcomes[0].plan != make(1, "sim", False)
    assert second_campaign.exit_code == 0


def test_corpus_and_crash_points_need_the_simulation(tmp_path: Path) -> None:
    options = Options(backend="process", net="plain")
    for campaign in (
        CampaignOptions(options=options, corpus=tmp_path),
        CampaignOptions(options=options, crash_points=CrashPoints(node="b1")),
    ):
        with pytest.raises(ScenarioError, match="--backend sim"):
            run_campaign(FAMILY, campaign, lambda line: None)


@pytest.mark.parametrize("name", ["small", "delays"])
def test_page_of_a_file_run_shows_the_command(tmp_path: Path, name: str) -> None:
    """Also of one that is named like a scenario that ships."""
    family = replace(FAMILY, name=name, source="/some where/small.toml")
    outcome = run_campaign(family, CampaignOptions(seeds=(1,), report=tmp_path), print).outcomes[0]
    assert outcome.directory is not None
    page = (outcome.directory / "index.html").read_text()
    assert "rocketbed chaos run &#39;/some where/small.toml&#39; --backend sim --seed 1" in page


def test_unknown_check_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    steps = 'steps = ["at 1s kill leader for 1s"]'
    file.write_text(f'name = "mine"\n{steps}\n[expect]\nchecks = ["table-complete"]\n')
    assert main(["chaos", "run", str(file), "--report", str(tmp_path / "out")]) == 64
    error = capsys.readouterr().err
    assert "unknown check 'table-complete'; did you mean 'tables-complete'?" in error
    assert not (tmp_path / "out").exists()
