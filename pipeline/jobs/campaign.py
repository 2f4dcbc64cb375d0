"""`campaign`: seeds of a scenario in simulation, spread over Spark's executors.

    OUT/campaign.json        scenario; a resumed campaign must have the same
    OUT/results/*.jsonl      a line for each finished seed, with its cost and host
    OUT/runs/seed-N/         files of a seed that did not pass: its page and its replay file

Only the driver writes to OUT; tasks send it their results. Each line is written as soon as its seed
is done, so a lost driver loses only the running seeds: `--resume` runs all seeds without a line.
Every hundredth seed is run a second time, and must have the same digest.
"""

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rocketbed.pipeline.errors import EXIT_FINDING, PipelineError
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.seeds import GOOD, SeedOptions, run_seed, unpack
from rocketbed.pipeline.jobs.spread import spread
from rocketbed.pipeline.report import write_whole

CAMPAIGN: Final = "campaign.json"
RESULTS: Final = "results"
RUNS: Final = "runs"
FORMAT: Final = 1
CHECK_SHARE: Final = 0.01
EXAMPLES: Final = 20
Run = tuple[int, bool]
"""A seed, and True for its second run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    seeds: SeedOptions
    out: Path
    first: int = 0
    count: int = 100
    resume: bool = False
    check_share: float = CHECK_SHARE


def campaign(job: Job, options: CampaignOptions) -> None:
    """Run the seeds that have no result yet. Raises `WrongUsage`, `PipelineError`."""
    out = options.out
    _open(out, options)
    done = results(out)
    seeds = range(options.first, options.first + options.count)
    finished = {(row["seed"], row["again"]) for row in done}
    runs = [
        *((seed, False) for seed in seeds),
        *((seed, True) for seed in checked(seeds, options)),
    ]
    remaining = [run for run in runs if run not in finished]
    selection = {"first": options.first, "count": options.count, "resume": options.resume}
    job.report.inputs.append({"scenario": options.seeds.scenario, "out": str(out), **selection})
    if remaining:
        with job.phase(f"running {len(remaining)} seeds"):
            _run_all(job, in_turn(remaining), options.seeds, out)
    requested = set(runs)
    by_run = {(row["seed"], row["again"]): row for row in results(out)}
    rows = [row for run, row in by_run.items() if run in requested]
    _judge(job, rows, runs, options.seeds.scenario)


def checked(seeds: Sequence[int], options: CampaignOptions) -> list[int]:
    """Return the seeds that are run a second time: every hundredth, and at least one."""
    if options.check_share <= 0:
        return []
    step = max(1, round(1 / options.check_share))
    return list(seeds[step - 1 :: step]) or [seeds[-1]]


def in_turn(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in a pseudo-random order that depends on the seeds only.

    Neighbours often take equally long, and the two runs of a seed should be far apart.
    """
    return sorted(runs, key=lambda run: (run[1], _spread(run[0])))


def _spread(seed: int) -> bytes:
    return hashlib.blake2b(str(seed).encode()).digest()


def results(out: Path) -> list[dict[str, Any]]:
    """Return the rows of the finished seeds, without lines that a killed writer truncated."""
    rows = []
    for path in sorted((out / RESULTS).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def _open(out: Path, options: CampaignOptions) -> None:
    """Create the directory, or continue in it. Raises `WrongUsage`, `PipelineError`."""
    expected = {"format": FORMAT, "scenario": options.seeds.scenario, "quick": options.seeds.quick}
    path = out / CAMPAIGN
    try:
        (out / RESULTS).mkdir(parents=True, exist_ok=True)
        existing = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if existing is None:
            write_whole(path, json.dumps(expected) + "\n")
    except (OSError, ValueError) as error:
        raise PipelineError(f"cannot use {out} for a campaign: {error}") from error
    if existing is not None and not options.resume:
        raise WrongUsage(
            f"{out} already holds a campaign: continue it with --resume, or give another --out"
        )
    if existing is not None and existing != expected:
        raise WrongUsage(
            f"{out} holds a campaign of {existing}, not of {expected}: give another --out"
        )


def _run_all(job: Job, runs: Sequence[Run], options: SeedOptions, out: Path) -> None:
    """Run each seed in a task; record each result before taking the next one."""

    def work(run: Run) -> tuple[dict[str, Any], bytes]:
        return run_seed(run[0], options, repeat=run[1])

    path = out / RESULTS / f"{os.getpid()}-{secrets.token_hex(6)}.jsonl"
    with path.open("w", encoding="utf-8") as file, closing(spread(job, work, runs)) as all_done:
        for done in all_done:
            row, archive = done.answer
            place = out / RUNS / f"seed-{row['seed']}"
            if archive:
                unpack(archive, place)
            row["replay"] = str(place / row["replay"]) if row["replay"] and archive else ""
            file.write(json.dumps(row | asdict(done.cost)) + "\n")
            file.flush()
            os.fsync(file.fileno())
            job.report.counts["runs"] = int(job.report.counts.get("runs", 0)) + 1


def _judge(
    job: Job, rows: list[dict[str, Any]], runs: Sequence[tuple[int, bool]], scenario: str
) -> None:
    """Enter counts and findings, also for seeds whose second run differs."""
    report = job.report
    first = {row["seed"]: row for row in rows if not row["again"]}
    verdicts = Counter(row["verdict"] for row in first.values())
    report.counts |= {"seeds": len(first), **dict(verdicts.most_common())}
    failed = [row for row in first.values() if row["verdict"] not in GOOD]
    if failed:
        _add_finding(job, "failed", "seeds that did not pass", failed)
    differing = [
        row
        for row in rows
        if row["again"] and row["seed"] in first and row["digest"] != first[row["seed"]]["digest"]
    ]
    report.counts["run twice"] = sum(row["again"] for row in rows)
    if differing:
        _add_finding(
            job, "not-repeatable", "seeds that took another way the second time", differing
        )
    _judge_checks(job, [*first.values()], scenario)
    missing = len(set(runs) - {(row["seed"], row["again"]) for row in rows})
    if missing:
        raise PipelineError(f"{missing} runs have no result; run them with --resume")


def _judge_checks(job: Job, rows: list[dict[str, Any]], scenario: str) -> None:
    """Report the checks that ran in no seed; a finding if `chaos run` fails for it too."""
    # Only the driver needs the testbed loaded.
    from rocketbed.chaos.plan.errors import ScenarioError
    from rocketbed.chaos.plan.library import load_scenario
    from rocketbed.chaos.search.unreached import must_run_all, never_ran

    rows = [row for row in rows if "looked" in row]  # an older campaign's rows lack it
    missed = never_ran(row["looked"] for row in rows)
    if not missed:
        return
    try:
        family = load_scenario(scenario)
    except ScenarioError as error:
        raise PipelineError(str(error)) from error
    if not must_run_all(family, len(rows)):
        job.report.notes.append(f"checks that ran in no seed: {', '.join(missed)}")
        return
    job.report.exit_code = EXIT_FINDING
    examples = [{"text": f"{check}: nothing to look at in {len(rows)} seeds"} for check in missed]
    title = "checks that ran in no seed"
    job.report.findings.append(
        {"id": "never-ran", "title": title, "count": len(missed), "examples": examples}
    )


def _add_finding(job: Job, name: str, title: str, rows: list[dict[str, Any]]) -> None:
    job.report.exit_code = EXIT_FINDING
    examples = [
        {
            "seed": row["seed"],
            "text": f"seed {row['seed']}: {row['verdict']} {row['findings']}".rstrip(),
            "replay": row["replay"],
            "tail": row["tail"],
        }
        for row in sorted(rows, key=lambda row: int(row["seed"]))[:EXAMPLES]
    ]
    job.report.findings.append(
        {"id": name, "title": title, "count": len(rows), "examples": examples}
    )
