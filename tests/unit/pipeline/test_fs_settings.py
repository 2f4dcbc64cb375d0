"""Settings of a session that count for a read, and for which."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.pipeline import read
from rocketbed.pipeline.fs_settings import settings_of
from rocketbed.pipeline.jobs.common import JobSettings
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options

PROVIDER = "spark.hadoop.fs.s3a.aws.credentials.provider"
CONF = {
    "spark.hadoop.fs.s3a.endpoint": "http://minio:9000/",
    PROVIDER: "org.x.SimpleAWSCredentialsProvider, org.x.AnonymousAWSCredentialsProvider",
    "spark.hadoop.fs.s3a.bucket.Logs.endpoint": "other:9000",
    "spark.hadoop.fs.s3a.bucket.my.own.endpoint.region": "eu",
    "spark.hadoop.fs.s3a.connection.maximum": "9",
    "fs.s3a.access.key": "no setting of Hadoop's",
}
FOR_ALL = {
    "fs.s3a.endpoint": "http://minio:9000",
    "fs.s3a.aws.credentials.provider": (
        "SimpleAWSCredentialsProvider,AnonymousAWSCredentialsProvider"
    ),
}


def test_settings_apply_to_s3_and_its_bucket_only(tmp_path: Path) -> None:
    """An ordinary setting of Hadoop's ended reads of local directories, and those of one bucket
    were passed over."""
    assert settings_of(CONF, "/data/store,b=/other") == ()
    assert dict(settings_of(CONF, "a=s3a://x/store,/data")) == FOR_ALL
    own = {"fs.s3a.bucket.logs.endpoint": "other:9000"}
    assert dict(settings_of(CONF, "a=s3://logs/store")) == FOR_ALL | own
    region = {"fs.s3a.bucket.my.own.endpoint.region": "eu"}
    assert dict(settings_of(CONF, "/data", "s3a://my.own/x")) == FOR_ALL | region
    listed = tmp_path / "stores"
    listed.write_text("s3a://logs/store\n")
    assert dict(settings_of(CONF, f"{listed}")) == FOR_ALL | own | region
    settings = settings_of(CONF, "s3a://logs/x", explicit={"fs.s3a.endpoint"})
    assert dict(settings).keys() == {"fs.s3a.aws.credentials.provider"}
    assert Options.parse({"path": "s3a://logs/x", **own}).fs == tuple(own.items())


def test_azure_settings_are_only_its_accounts() -> None:
    key = "fs.azure.account.key"
    of_one = f"{key}.acc.dfs.core.windows.net"
    conf = CONF | {f"spark.hadoop.{key}": "a2V5", f"spark.hadoop.{of_one}": "bWlu"}
    assert dict(settings_of(conf, "s3a://x/store")) == FOR_ALL
    assert dict(settings_of(conf, "abfss://box@other.dfs.x.net/store")) == {key: "a2V5"}
    location = "a=abfs://box@acc.dfs.core.windows.net/store"
    assert dict(settings_of(conf, location)) == {key: "a2V5", of_one: "bWlu"}
    assert dict(settings_of(conf, location, explicit={key})) == {}
    assert dict(settings_of(conf, location, explicit={"fs.azure.sas.fixed.token"})) == {}
    assert Options.parse({"path": location, of_one: "bWlu"}).fs == ((of_one, "bWlu"),)


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        (PROVIDER, "x.MyProvider", f"{PROVIDER}='x.MyProvider' of Spark's .* expected some of"),
        ("spark.hadoop.fs.s3a.bucket.x.endpoint", "http://h:1/p", "x.endpoint='http:.*expected"),
        ("spark.hadoop.fs.s3a.secret.key", "my secret", "secret.key of Spark's .* one word"),
    ],
)
def test_unusable_setting_names_its_source(name: str, value: str, pattern: str) -> None:
    assert settings_of({name: value}, "/data/store") == ()
    with pytest.raises(OptionError, match=pattern):
        settings_of({name: value}, "s3a://x/store")


def test_reads_and_jobs_take_them() -> None:
    texts: dict[str, str] = {}

    def options(**expected: str) -> Any:
        texts.update(expected)
        return SimpleNamespace(load=lambda: None)

    reader = SimpleNamespace(format=lambda _: SimpleNamespace(options=options))
    spark: Any = SimpleNamespace(conf=SimpleNamespace(getAll=CONF), read=reader)
    read(spark, "/data/store")
    assert texts == {"path": "/data/store"}
    read(spark, "s3a://x/store")
    assert texts == {"path": "s3a://x/store", **FOR_ALL}
    for store, expected_options in (("/data", {}), ("a=s3a://x/store", FOR_ALL)):
        job = JobSettings(stores=(store,), conf=CONF)
        assert job.source_options() == {"path": store, "mode": "PERMISSIVE", **expected_options}
    assert "fs.s3a.endpoint" not in JobSettings(endpoints="h:1", conf=CONF).source_options()
    with pytest.raises(
        OptionError, match=r"fs\.s3a\.endpoint is for path, not for a read over endp"
    ):
        Options.parse({"endpoints": "h:1", "fs.s3a.endpoint": "x"})
