"""Many seeds: which exit code wins, what is kept, what is skipped."""

from itertools import permutations
from pathlib import Path

import pytest

from chaos.campaign import Campaign, CampaignOptions, clear_place, run_campaign
from chaos.record import RUN_FILE
from chaos.runner import Options
from chaos.scenario.errors import ScenarioError
from chaos.scenario.family import Family
from chaos.scenario.plan import Consumers, Expect, Plan, Producers, Shape

MISSED = 2
"""The seed that cannot meet what is expected."""


def make(seed: int, _backend: str, _quick: bool) -> Plan:
    return Plan(
        name="small",
        seed=seed,
        shape=Shape(brokers=1, nameservers=1, repl="async"),
        producers=Producers(count=1, rate=5),
        consumers=Consumers(count=1),
        storm_s=1.0,
        calm_s=2.0,
        expect=Expect(progress=(100_000, 0.5) if seed == MISSED else None),
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


def test_what_failed_is_kept_and_can_be_replayed(tmp_path: Path) -> None:
    lines: list[str] = []
    options = CampaignOptions(seeds=(1, MISSED, 3), report=tmp_path, shrink=False)
    result = run_campaign(FAMILY, options, lines.append)
    assert (result.counts, result.exit_code) == ({"pass": 2, "stalled": 1}, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"FAIL-small-{MISSED}.rbx",
        f"small-{MISSED}-sim",
    ]
    assert (tmp_path / f"small-{MISSED}-sim" / "index.html").exists()
    assert any(line.startswith(f"seed {MISSED}: stalled  X2") for line in lines)


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
