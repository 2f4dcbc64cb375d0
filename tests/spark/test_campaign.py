"""A campaign on Spark: every seed once, one twice, what failed is kept, and none runs again.

Mutants fare as they do without Spark.
"""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rocketbed.chaos.mutants.draw import read_sources
from rocketbed.chaos.mutants.generated import Found, Search, begin, search
from rocketbed.chaos.mutants.tally import SURVIVORS, score, write_survivors
from rocketbed.chaos.mutants.visits import Trial
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.sessions.room import run_room
from rocketbed.cli.pipeline.campaign import campaign as command
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.campaign import CampaignOptions, campaign, results
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.failures import SparkFailed
from rocketbed.pipeline.jobs.mutants import mutants
from rocketbed.pipeline.jobs.seeds import SeedOptions
from rocketbed.pipeline.jobs.spread import spread
from tests.support.campaigns import LONE, SCENARIO, mutant

pytestmark = pytest.mark.spark
SOURCES = read_sources(mutated=("node/release.py", "node/store/retention.py"))
BY_CLUSTER = mutant("ReleaseQueue._is_safe", "self._flushed.value >= end) or (", SOURCES)
BY_NONE = mutant("ReleaseQueue._is_safe", "self._flushed.value >= (end + 1)", SOURCES)
BY_SESSION = mutant("Retention._tight", "return not (", SOURCES)
KEYS = tuple(one.key for one in (BY_CLUSTER, BY_NONE, BY_SESSION))
MISSED = '[expect]\nprogress = [100000, "1s"]\n'


def test_a_campaign_and_its_second_half(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(SCENARIO.replace("STORM", "1s") + MISSED)
    options = CampaignOptions(
        seeds=SeedOptions(scenario=str(path)), out=tmp_path / "out", first=5, count=1
    )
    job = Job("campaign", JobSettings(), spark=spark)
    campaign(job, options)
    assert job.report.counts == {"runs": 2, "seeds": 1, "stalled": 1, "run twice": 1}
    assert job.report.exit_code == 1
    (found,) = job.report.findings
    assert (found["id"], found["count"]) == ("failed", 1)
    assert Path(found["examples"][0]["replay"]).exists()
    again = Job("campaign", JobSettings(), spark=spark)
    campaign(again, replace(options, count=2, resume=True))
    assert again.report.counts["seeds"] == 2
    rows = results(tmp_path / "out")
    assert all(row["cpu_s"] > 0 and row["attempt"] == 0 and row["host"] for row in rows)
    assert sorted((row["seed"], row["again"]) for row in rows) == [
        (5, False),
        (5, True),
        (6, False),
        (6, True),
    ]


@pytest.fixture
def trials() -> list[Trial]:
    room = Plan(name="room", seed=1)
    return [Trial(plan=LONE), Trial(plan=room, session=partial(run_room, 1), kind="session")]


def steady(found: Found) -> list[dict[str, Any]]:
    """What became of each mutant, without what it cost."""
    return [{**asdict(fate), "cpu_s": 0.0} for _, fate in found.fates]


def test_mutants_fare_as_they_do_without_spark(
    spark: SparkSession, tmp_path: Path, trials: list[Trial]
) -> None:
    here = Search(number=10_000, out=tmp_path / "here", jobs=1, runs=1, only=KEYS)
    alone = search(here, print, print, warn=print, trials=trials, sources=SOURCES)
    there = replace(here, out=tmp_path / "there")
    job = Job("campaign", JobSettings(), spark=spark)
    assert steady(mutants(job, there, trials=trials, sources=SOURCES)) == steady(alone)
    assert {one.key: (fate.state, fate.by) for one, fate in alone.fates} == {
        BY_CLUSTER.key: ("found", ["I7"]),
        BY_NONE.key: ("not found", []),
        BY_SESSION.key: ("found", ["room"]),
    }
    assert job.report.counts == {"tried": 3, **score(alone)["all"]}
    assert job.report.exit_code == 0
    assert write_survivors(alone, here.out / SURVIVORS) == 1
    assert (there.out / SURVIVORS).read_text() == (here.out / SURVIVORS).read_text()

    again = begin(there, print, warn=print, trials=trials, sources=SOURCES)
    assert again.left == [], "a local call has nothing to try"
    assert steady(again) == steady(alone)
    job = Job("campaign", JobSettings(), spark=spark)
    assert steady(mutants(job, there, trials=trials, sources=SOURCES)) == steady(alone)
    assert job.report.counts["tried"] == 0


def test_a_piece_that_fails_does_not_end_those_after_the_first_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    def work(piece: int) -> int:
        if piece == 3:  # it begins when one is done
            raise PipelineError("not three")
        return piece * piece

    job = Job("campaign", JobSettings(), spark=spark)
    answers: list[int] = []
    with pytest.raises(SparkFailed, match="1 of 5 tasks failed: not three"):
        answers.extend(done.answer for done in spread(job, work, [0, 1, 2, 3, 4]))
    assert sorted(answers) == [0, 1, 4, 16]
    (row,) = job.report.tables["cost"]
    assert (row["tasks"], row["repeated"]) == (4, 0)
    with pytest.raises(Exception, match="not three"):
        list(spread(job, work, [3]))


def test_mutants_that_cannot_be_judged_are_an_error(
    tmp_path: Path, spark: SparkSession, trials: list[Trial]
) -> None:
    def bad() -> str:
        raise ValueError("not today")

    wanted = Search(number=1, out=tmp_path, jobs=1)
    job = Job("campaign", JobSettings(), spark=spark)
    with pytest.raises(PipelineError, match="room/1 fails with nothing planted"):
        mutants(job, wanted, trials=[replace(trials[1], session=bad)], sources=SOURCES)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either a SCENARIO or --mutants N"),
        (["soak-swarm", "--mutants", "3"], "give either a SCENARIO or --mutants N"),
        (["--mutants", "3", "--quick"], "--quick has no meaning with --mutants"),
        (["soak-swarm", "--runs", "3"], "--runs has no meaning with SCENARIO"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code != 0
    assert says in result.output
