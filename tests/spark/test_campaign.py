"""A campaign on Spark: every seed once, one twice, what failed is kept, and none runs again."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketbed.pipeline.jobs.campaign import CampaignOptions, campaign, results
from rocketbed.pipeline.jobs.common import Job, JobSettings
from rocketbed.pipeline.jobs.seeds import SeedOptions
from tests.support.campaigns import SCENARIO

pytestmark = pytest.mark.spark
MISSED = '[expect]\nprogress = [100000, "1s"]\n'


def test_a_campaign_and_its_second_half(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(SCENARIO.replace("STORM", "1s") + MISSED)
    options = CampaignOptions(
        seeds=SeedOptions(scenario=str(path), out=str(tmp_path / "out")), first=5, count=1
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
    assert sorted((row["seed"], row["again"]) for row in rows) == [
        (5, False),
        (5, True),
        (6, False),
        (6, True),
    ]
