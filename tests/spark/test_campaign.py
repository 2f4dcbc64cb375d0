"""A campaign on Spark: every seed once, one twice, what failed is kept, and none runs again."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.campaign import CampaignOptions, campaign, results
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.failures import SparkFailed
from rocketbed.pipeline.jobs.seeds import SeedOptions
from rocketbed.pipeline.jobs.spread import spread
from tests.support.campaigns import SCENARIO

pytestmark = pytest.mark.spark
MISSED = '[expect]\nprogress = [100000, "1s"]\n'


@pytest.mark.slow
def test_a_campaign_and_its_second_half(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(SCENARIO.replace("FAULTS", "1s") + MISSED)
    options = CampaignOptions(
        seeds=SeedOptions(scenario=str(path)), out=tmp_path / "out", first=5, count=1
    )
    job = Job("campaign", JobSettings(), spark=spark)
    campaign(job, options)
    assert job.report.counts == {"runs": 2, "seeds": 1, "stalled": 1, "run twice": 1}
    assert job.report.exit_code == 1
    (finding,) = job.report.findings
    assert (finding["id"], finding["count"]) == ("failed", 1)
    assert Path(finding["examples"][0]["replay"]).exists()
    resumed = Job("campaign", JobSettings(), spark=spark)
    campaign(resumed, replace(options, count=2, resume=True))
    assert resumed.report.counts["seeds"] == 2
    rows = results(tmp_path / "out")
    assert all(row["cpu_s"] > 0 and row["attempt"] == 0 and row["host"] for row in rows)
    assert sorted((row["seed"], row["again"]) for row in rows) == [
        (5, False),
        (5, True),
        (6, False),
        (6, True),
    ]


def test_failing_piece_does_not_end_later_ones(spark: SparkSession, tmp_path: Path) -> None:
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
