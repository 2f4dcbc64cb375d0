"""Seeds of a scenario, run side by side; failures kept, shrunk and made repeatable.

What a failing seed leaves in the report's directory is its run's directory with the page, and a
replay file beside it. One run in a hundred of a simulation is made a second time in a fresh
interpreter with other hashes, and has to give the same digest.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from chaos.checkers.judgement import Judgement
from chaos.record import HISTORY_FILE, RUN_FILE, STORES, RunRecord
from chaos.report.page import write_report
from chaos.runner import VERDICT_FILE, Options, Outcome, is_full, run_many
from chaos.scenario.errors import ScenarioError
from chaos.scenario.family import Family
from chaos.scenario.plan import Plan
from chaos.scenario.replay import Replay, save_replay
from chaos.scenario.shrink import shrink

EXIT_HARNESS: Final = 4
EXIT_STRICT: Final = 5
EXIT_NOT_REPEATABLE: Final = 7
SEVERITY: Final = (1, 3, 2, 4, 6, 7, 5, 0)
"""Exit codes, the worst first (chaos.md 4.9)."""
OURS: Final = (RUN_FILE, HISTORY_FILE, VERDICT_FILE, STORES, "nodes")
"""What a directory with a run, or a part of one, has some of."""
SHRINK_RUNS: Final = 60
SHRINK_S: Final = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """What a campaign is told."""

    options: Options = field(default_factory=Options)
    seeds: Sequence[int] = (0,)
    jobs: int = 2
    quick: bool = False
    report: Path | None = None
    """Where runs are kept: all of them when there is one seed, else those that failed."""
    strict: bool = False
    shrink: bool = True
    check_share: float = 0.01
    """Share of simulated runs that are made again in another interpreter."""


@dataclass(slots=True)
class Campaign:
    """What came of it."""

    family: Family
    counts: "Counter[str]" = field(default_factory=Counter)
    """Runs by verdict."""
    outcomes: list[Outcome] = field(default_factory=list)
    replays: dict[int, Path] = field(default_factory=dict)
    """Seed -> its replay file."""
    not_repeatable: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    exit_code: int = 0

    def add_exit(self, code: int) -> None:
        """The worse of this and what was."""
        self.exit_code = min(self.exit_code, code, key=SEVERITY.index)


def run_campaign(family: Family, campaign: CampaignOptions, say: Say) -> Campaign:
    """Run all seeds. Raises `ScenarioError` before anything runs, `OSError` for the report."""
    result = Campaign(family)
    options = campaign.options
    plans = [family.plan(seed, options.backend, quick=campaign.quick) for seed in campaign.seeds]
    single = len(plans) == 1
    outcomes = run_many(
        plans,
        options if single else replace(options, say=None),
        jobs=campaign.jobs,
        keep=lambda plan: _place(campaign, plan),
    )
    with closing(outcomes):
        for outcome in outcomes:
            _take(result, campaign, outcome, say, single=single)
    if options.backend == "sim":
        for plan in _sample(plans, campaign.check_share):
            _check_digest(result, plan, say)
    return result


def _take(
    result: Campaign, campaign: CampaignOptions, outcome: Outcome, say: Say, *, single: bool
) -> None:
    result.counts[outcome.verdict] += 1
    result.simulated_s += outcome.simulated_s
    result.outcomes.append(outcome)
    result.add_exit(0 if outcome.verdict == "skipped" else outcome.exit_code)
    skipped = outcome.record.skipped if outcome.record else []
    if campaign.strict and skipped:
        result.add_exit(EXIT_STRICT)
    if not single:
        say(_line(outcome))
    failed = outcome.verdict not in ("pass", "skipped")
    if outcome.directory is not None and outcome.judgement is not None:
        if failed or single:
            assert outcome.record is not None
            _write_page(outcome.directory, outcome.judgement, outcome.record)
        else:
            shutil.rmtree(outcome.directory, ignore_errors=True)
            outcome.directory = None
    if failed and outcome.record is not None and campaign.report is not None:
        _make_repeatable(result, campaign, outcome, say)


def _write_page(directory: Path, judgement: Judgement, record: RunRecord) -> None:
    """The run's page; a disk that is full of the run gets its room back."""
    try:
        write_report(directory, judgement, record)
    except OSError as error:
        if is_full(error):
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _make_repeatable(
    result: Campaign, campaign: CampaignOptions, outcome: Outcome, say: Say
) -> None:
    """Write the replay file; of a simulated finding one that was shrunk first."""
    assert campaign.report is not None
    replay = Replay.of(outcome)
    if campaign.shrink and outcome.finding_ids and campaign.options.backend == "sim":
        say("shrinking the plan ...")
        shrunk = shrink(
            outcome,
            replace(campaign.options, say=None),
            jobs=campaign.jobs,
            runs=SHRINK_RUNS,
            seconds=SHRINK_S,
        )
        if shrunk.reproduced and shrunk.replay is not None:
            replay = shrunk.replay
            say(
                f"{shrunk.finding} is shown by {shrunk.steps_after} of {shrunk.steps_before} steps"
                f" ({shrunk.runs} runs):"
            )
            for step in shrunk.plan.steps:
                say(f"    {step}")
        else:
            say(f"{shrunk.finding} did not show when only what was done was done again")
    path = campaign.report / replay.name
    save_replay(replay, path)
    result.replays[outcome.plan.seed] = path


def _place(campaign: CampaignOptions, plan: Plan) -> Path | None:
    if campaign.report is None:
        return None
    place = campaign.report / f"{plan.name}-{plan.seed}-{campaign.options.backend}"
    clear_place(place)
    return place


def clear_place(place: Path) -> None:
    """Remove an earlier run. Raises `ScenarioError` for a directory that holds something else."""
    if not place.exists():
        return
    names = {path.name for path in place.iterdir()} if place.is_dir() else {place.name}
    if names and not names.intersection(OURS):
        raise ScenarioError(f"{place} holds no run of ours: choose another --report")
    shutil.rmtree(place, ignore_errors=True)


def _line(outcome: Outcome) -> str:
    counts = outcome.record.facts.get("counts", {}) if outcome.record else {}
    findings = f"  {', '.join(outcome.finding_ids)}" if outcome.finding_ids else ""
    error = f"  {outcome.error.strip().splitlines()[-1]}" if outcome.error else ""
    return (
        f"seed {outcome.plan.seed}: {outcome.verdict}{findings}  ({counts.get('ok', 0)} ok,"
        f" {outcome.simulated_s or outcome.wall_s:.0f} s{error})"
    )


def _sample(plans: Sequence[Plan], share: float) -> Iterator[Plan]:
    """Every hundredth plan, and none where there are too few."""
    if share <= 0:
        return
    step = max(1, round(1 / share))
    yield from plans[step - 1 :: step]


def _check_digest(result: Campaign, plan: Plan, say: Say) -> None:
    from chaos.scenario.determinism import DeterminismError, same_digest

    try:
        answer = same_digest(plan)
    except DeterminismError as error:
        result.add_exit(EXIT_HARNESS)
        say(f"seed {plan.seed} could not be run again elsewhere: {error}")
        return
    if not answer.same:
        result.not_repeatable.append(f"seed {plan.seed}: {answer.reason}")
        result.add_exit(EXIT_NOT_REPEATABLE)
        say(f"seed {plan.seed} does not repeat itself: {answer.reason}")
