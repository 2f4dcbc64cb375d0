"""Runs the seeds of a scenario side by side; failures are kept, shrunk and made repeatable.

A failing seed leaves its run's directory, with the report page, in the report's directory, and a
replay file beside it. One in a hundred simulated runs is repeated in a fresh interpreter with
another hash seed, and must give the same digest.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.checks.judgement import Judgement, SecondJudge, clear_place
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.library import is_shipped
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.report.text import run_command
from rocketbed.chaos.search.corpus import Corpus
from rocketbed.chaos.search.crashpoints import crash_event, crash_points
from rocketbed.chaos.search.determinism import DeterminismError, difference
from rocketbed.chaos.search.failures import is_full
from rocketbed.chaos.search.progress import Progress
from rocketbed.chaos.search.replay import Replay, save_replay
from rocketbed.chaos.search.runner import Options, Outcome, Say, run_many
from rocketbed.chaos.search.shrink import Budget, shrink
from rocketbed.chaos.search.unreached import must_run_all, never_ran
from rocketbed.host.child import signals_blocked

EXIT_HARNESS: Final = 4
EXIT_STRICT: Final = 5
EXIT_NOT_REPEATABLE: Final = 7
EXIT_UNKNOWN: Final = 6
SEVERITY: Final = (1, 3, 2, 4, 6, 7, 5, 0)
"""Exit codes, the worst first (chaos.md 4.9)."""
SHRINK_RUNS: Final = 60
SHRINK_S: Final = 120.0
SECOND_OPINION: Final = "second-opinion"
"""Id of the check that a second judge adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoints:
    node: str
    power: bool = False
    """True for a power cut instead of a kill."""
    sample: int = 40
    """Number of crash points, spread over all possible ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    options: Options = field(default_factory=Options)
    seeds: Sequence[int] = (0,)
    jobs: int = 2
    quick: bool = False
    report: Path | None = None
    """Directory that keeps runs: all of them for one seed, otherwise the failed ones."""
    strict: bool = False
    shrink: bool = True
    second_judge: SecondJudge | None = None
    """Called for every judged run whose directory is kept."""
    check_share: float = 0.01
    """Share of simulated runs that are repeated in another interpreter."""
    corpus: Path | None = None
    """Directory of plans that reached something new: half of the seeds vary one of them (sim)."""
    crash_points: CrashPoints | None = None
    """Run each seed many times, each with a node's death at another change of its disk (sim)."""


@dataclass(slots=True)
class Campaign:
    family: Family
    counts: "Counter[str]" = field(default_factory=Counter)
    """Number of runs by verdict."""
    outcomes: list[Outcome] = field(default_factory=list)
    replays: dict[str, Path] = field(default_factory=dict)
    """Key of a plan (`run_key`) -> its replay file."""
    new_points: int = 0
    """Number of points that no plan of the corpus had reached before."""
    not_repeatable: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    real_s: float = 0.0
    exit_code: int = 0

    def add_exit(self, code: int) -> None:
        """Set the exit code to the worse of this code and the present one."""
        self.exit_code = min(self.exit_code, code, key=SEVERITY.index)

    @property
    def never_ran(self) -> list[str]:
        """Ids of checks that had nothing to examine in any of the runs."""
        judged = (outcome.judgement for outcome in self.outcomes)
        return never_ran(judgement.looked for judgement in judged if judgement is not None)

    def as_row(self) -> dict[str, Any]:
        """Return the result for programs: the verdict of a single run, or a table of many."""
        rows = []
        for outcome in self.outcomes:
            row: dict[str, Any] = {"seed": outcome.plan.seed, "verdict": outcome.verdict}
            if outcome.judgement is not None:
                row = {**outcome.judgement.as_row(), **row}
            if outcome.error:
                row["error"] = outcome.error
            if outcome.directory is not None:
                row["directory"] = str(outcome.directory)
            if (replay := self.replays.get(run_key(outcome.plan))) is not None:
                row["replay"] = str(replay)
            rows.append(row)
        if len(rows) == 1:
            return {**rows[0], "exit_code": self.exit_code}
        return {
            "scenario": self.family.name,
            "exit_code": self.exit_code,
            "simulated_s": round(self.simulated_s, 3),
            "counts": dict(self.counts),
            "not_repeatable": self.not_repeatable,
            "new_points": self.new_points,
            "never_ran": self.never_ran,
            "runs": rows,
        }


def run_campaign(family: Family, campaign: CampaignOptions, say: Say) -> Campaign:
    """Run all seeds. Raises `ScenarioError` before anything runs, `OSError` for the report."""
    result = Campaign(family)
    options = campaign.options
    if options.backend != "sim" and (campaign.corpus or campaign.crash_points):
        raise ScenarioError("a corpus and crash points need --backend sim")
    corpus = None if campaign.corpus is None else Corpus(campaign.corpus)
    plans = _plans(family, campaign, corpus)
    single = len(campaign.seeds) == 1 and campaign.crash_points is None

    def place_of(plan: Plan) -> Path | None:
        if campaign.report is None:
            return None
        place = campaign.report / f"{run_key(plan)}-{options.backend}"
        clear_place(place)
        return place

    crash_runs = campaign.crash_points.sample if campaign.crash_points else 1
    total = len(campaign.seeds) * crash_runs
    if not single:
        say(f"{total} runs of {family.name}, {campaign.jobs} at a time")
    progress = Progress(total, say)
    run_options = options if single else replace(options, say=None)
    outcomes = run_many(plans, run_options, jobs=campaign.jobs, keep=place_of)
    with closing(outcomes):
        for outcome in outcomes:
            if corpus is not None:
                result.new_points += len(corpus.add(outcome))
            _handle_outcome(result, campaign, outcome, say, single=single)
            progress.add()
    result.real_s = progress.elapsed_s
    if options.backend == "sim" and campaign.check_share > 0:
        interval = max(1, round(1 / campaign.check_share))
        for outcome in result.outcomes[interval - 1 :: interval]:
            _check_digest(result, outcome.plan, say)
    if must_run_all(family, len(result.outcomes), options.backend) and result.never_ran:
        result.add_exit(EXIT_UNKNOWN)
    return result


def run_key(plan: Plan) -> str:
    """Return what distinguishes the runs of one campaign: scenario, seed, and place of a crash."""
    event = crash_event(plan)
    return f"{plan.name}-{plan.seed}" + ("" if event is None else f"-at-{event}")


def _plans(family: Family, campaign: CampaignOptions, corpus: Corpus | None) -> Iterable[Plan]:
    """Return the plans to run; plans from a corpus one at a time, as it grows meanwhile."""
    backend, points = campaign.options.backend, campaign.crash_points
    plans = [family.plan(seed, backend, quick=campaign.quick) for seed in campaign.seeds]
    if points is not None:
        return chain.from_iterable(crash_points(plan, **asdict(points)) for plan in plans)
    return plans if corpus is None else map(corpus.plan, plans)


def _handle_outcome(
    result: Campaign, campaign: CampaignOptions, outcome: Outcome, say: Say, *, single: bool
) -> None:
    _ask_second_judge(campaign, outcome)
    result.counts[outcome.verdict] += 1
    result.simulated_s += outcome.simulated_s
    result.outcomes.append(outcome)
    result.add_exit(0 if outcome.verdict == "skipped" else outcome.exit_code)
    record = outcome.record
    if campaign.strict and record and (record.skipped or record.facts.get("missed")):
        result.add_exit(EXIT_STRICT)
    if not single:
        say(_line(outcome))
    failed = outcome.verdict not in ("pass", "skipped")
    if outcome.directory is not None and outcome.judgement is not None:
        if failed or single:
            assert outcome.record is not None
            named_record = outcome.record
            if not is_shipped(result.family):
                named_record = replace(named_record, scenario=result.family.source)
            command = run_command(named_record)
            _write_page(outcome.directory, outcome.judgement, outcome.record, command)
        else:
            with signals_blocked():
                shutil.rmtree(outcome.directory, ignore_errors=True)
            outcome.directory = None
    if failed and outcome.record is not None and campaign.report is not None:
        _make_repeatable(result, campaign, outcome, say)


def _ask_second_judge(campaign: CampaignOptions, outcome: Outcome) -> None:
    """Add the second judge's result to the judgement, and save it."""
    directory, judgement = outcome.directory, outcome.judgement
    if campaign.second_judge is None or directory is None or judgement is None:
        return
    if judgement.record is None or not judgement.record.stores:
        return
    judgement.results.append(campaign.second_judge(directory, judgement))
    judgement.save(directory)


def _write_page(directory: Path, judgement: Judgement, record: RunRecord, command: str) -> None:
    """Write the run's page. If the run filled the disk, its directory is removed."""
    try:
        write_report(directory, judgement, record, repeat_command=command)
    except OSError as error:
        if is_full(error):
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _make_repeatable(
    result: Campaign, campaign: CampaignOptions, outcome: Outcome, say: Say
) -> None:
    """Write the replay file; a simulated finding is shrunk first."""
    assert campaign.report is not None
    replay = Replay.of(outcome)
    own_findings = [id_ for id_ in outcome.finding_ids if id_ != SECOND_OPINION]
    if campaign.shrink and own_findings and campaign.options.backend == "sim":
        say("shrinking the plan ...")
        options = replace(campaign.options, say=None)
        shrunk = shrink(outcome, options, jobs=campaign.jobs, budget=Budget(SHRINK_RUNS, SHRINK_S))
        if shrunk.reproduced and shrunk.replay is not None:
            replay = shrunk.replay
            say(
                f"{shrunk.finding} is shown by {shrunk.steps_after} of {shrunk.steps_before} steps"
                f" ({shrunk.runs} runs):"
            )
            for step in shrunk.plan.steps:
                say(f"    {step}")
        else:
            say(
                f"{shrunk.finding} did not occur when only the steps that were carried out were run"
            )
    path = campaign.report / f"FAIL-{run_key(outcome.plan)}.rbx"
    save_replay(replay, path)
    result.replays[run_key(outcome.plan)] = path


def _line(outcome: Outcome) -> str:
    counts = outcome.facts.get("counts", {})
    findings = f"  {', '.join(outcome.finding_ids)}" if outcome.finding_ids else ""
    error = f"  {outcome.error.strip().splitlines()[-1]}" if outcome.error else ""
    lasted = (
        f"{outcome.simulated_s:.0f} simulated s"
        if outcome.simulated_s
        else f"{outcome.wall_s:.0f} real s"
    )
    return (
        f"{_title(outcome.plan)}: {outcome.verdict}{findings}  ({counts.get('ok', 0)} ok,"
        f" {lasted}{error})"
    )


def _title(plan: Plan) -> str:
    event = crash_event(plan)
    return f"seed {plan.seed}" + ("" if event is None else f", death at disk event {event}")


def _check_digest(result: Campaign, plan: Plan, say: Say) -> None:
    try:
        divergence = difference(plan)
    except DeterminismError as error:
        result.add_exit(EXIT_HARNESS)
        say(f"{_title(plan)} could not be repeated in another process: {error}")
        return
    if divergence:
        result.not_repeatable.append(f"{_title(plan)}: {divergence}")
        result.add_exit(EXIT_NOT_REPEATABLE)
        say(f"{_title(plan)} is not deterministic: {divergence}")
