"""`rocketbed pipeline campaign`: seeds of a scenario, simulated on Spark."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rocketbed.cli.pipeline.options import do_job, job_options, settings_of
from rocketbed.pipeline.jobs.campaign import CampaignOptions
from rocketbed.pipeline.jobs.campaign import campaign as campaign_job
from rocketbed.pipeline.jobs.seeds import SeedOptions
from rocketbed.pipeline.jobs.spread import CONF


@click.command()
@click.argument("scenario")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True)
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
    scenario: str,
    seed: int,
    seeds: int,
    quick: bool,
    timeout_s: float,
    memory_mib: int,
    resume: bool,
    **common: Any,
) -> int:
    """Run many seeds of SCENARIO (a name from `chaos list`, or a file) in simulation.

    Every seed runs in its own process. Runs that did not pass are kept in --out with their replay
    files. Results are written as they arrive, so --resume continues an interrupted campaign.
    """
    settings = settings_of(common)
    settings = replace(settings, conf=CONF | settings.conf)
    out = settings.out or Path("out/campaign")
    if not any(scenario.endswith(end) for end in (".toml", ".py")):
        names = _scenario_names()
        if scenario not in names:
            raise click.UsageError(
                f"unknown scenario {scenario!r}: choose {', '.join(names)}, or give a file"
            )
        text = ""
    else:
        scenario = str(Path(scenario).absolute())
        try:
            text = Path(scenario).read_text(encoding="utf-8-sig")
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
        first=seed,
        count=seeds,
        resume=resume,
    )
    return do_job("campaign", settings, lambda job: campaign_job(job, options))


def _scenario_names() -> list[str]:
    from rocketbed.chaos.plan.library import scenario_names

    return list(scenario_names())
