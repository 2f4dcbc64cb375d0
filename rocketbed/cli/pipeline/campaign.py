"""`rocketbed pipeline campaign`: simulation seeds, or generated mutants, on Spark."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.campaign import CampaignOptions
from rocketbed.pipeline.jobs.campaign import campaign as campaign_job
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.seeds import SeedOptions
from rocketbed.pipeline.jobs.spread import CONF

OF_SCENARIOS: Final = ("seeds", "quick", "timeout_s", "memory_mib", "resume")
OF_MUTANTS: Final = ("runs",)


@click.command()
@click.argument("scenario", required=False)
@click.option(
    "--mutants", metavar="N", type=click.IntRange(min=1),
    help="Instead of SCENARIO: so many of `rocketbed chaos mutants --generated`.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), help="First seed [default: 0; of mutants: 1].")
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True)
@click.option(
    "--runs", type=click.IntRange(min=1),
    help="Of mutants: runs of clusters that each has to pass to be not found [default: 6].",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Run a shortened form of the scenario.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=300.0, show_default=True,
    help="Time limit of one seed, in seconds.",
)  # fmt: skip
@click.option(
    "--memory", "memory_mib", type=click.IntRange(min=64), default=1024, show_default=True,
    help="Memory limit of one seed, in MiB.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue the campaign in --out.")
@job_options()
def campaign(
    scenario: str | None,
    mutants: int | None,
    seed: int | None,
    seeds: int,
    runs: int | None,
    quick: bool,
    timeout_s: float,
    memory_mib: int,
    resume: bool,
    **common: Any,
) -> int:
    """Run many seeds of SCENARIO (a name from `chaos list`, or a file) in simulation.

    Every seed runs in its own process. Runs that did not pass are kept in --out with their replay
    files. Results are written as they arrive, so --resume continues an interrupted campaign.

    With --mutants the runs are those of generated mutants, and --out (default: out/mutants) is the
    --report of `rocketbed chaos mutants --generated`: each goes on where the other was ended.
    """
    settings = settings_of(common)
    settings = replace(settings, conf=CONF | settings.conf)
    if (scenario is None) == (mutants is None):
        raise click.UsageError("give either a SCENARIO or --mutants N")
    if scenario is None:
        _refuse(OF_SCENARIOS, "--mutants")
    else:
        _refuse(OF_MUTANTS, "SCENARIO")
    if mutants is not None:
        return _mutants(settings, mutants, seed, runs)
    assert scenario is not None
    out = settings.out or Path("out/campaign")
    if not any(scenario.endswith(end) for end in (".toml", ".py")):
        known = _scenario_names()
        if scenario not in known:
            raise click.UsageError(
                f"unknown scenario {scenario!r}: choose {', '.join(known)}, or give a file"
            )
        text = ""
    else:
        scenario = str(Path(scenario).absolute())
        try:
            text = Path(scenario).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"cannot read the scenario {scenario}: {error}") from error
    options = CampaignOptions(
        seeds=SeedOptions(
            scenario=scenario,
            text=text,
            quick=quick,
            timeout_s=timeout_s,
            memory_mib=memory_mib,
        ),
        out=out.absolute(),
        first=seed or 0,
        count=seeds,
        resume=resume,
    )
    return do_job("campaign", settings, lambda job: campaign_job(job, options))


def _mutants(settings: JobSettings, number: int, seed: int | None, runs: int | None) -> int:
    from rocketbed.chaos.mutants.generated import RUNS, SEED, Search
    from rocketbed.chaos.mutants.tally import score_lines
    from rocketbed.pipeline.jobs.mutants import mutants

    wanted = Search(
        number=number,
        out=settings.out or Path("out/mutants"),
        seed=SEED if seed is None else seed,
        jobs=os.cpu_count() or 1,
        runs=runs or RUNS,
    )
    lines: list[str] = []

    def work(job: Job) -> None:
        lines.extend(score_lines(mutants(job, wanted)))

    code = do_job("campaign", settings, work)
    if not settings.as_json:
        click.echo("\n".join(lines))
    return code


def _refuse(names: tuple[str, ...], what: str) -> None:
    """Raises `click.UsageError` for an option that says nothing about what is run."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "")
        if option.name in names and given is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option.opts[0]} has no meaning with {what}")


def _scenario_names() -> list[str]:
    from rocketbed.chaos.scenario.library import scenario_names

    return list(scenario_names())
