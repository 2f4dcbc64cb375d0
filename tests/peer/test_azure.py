"""Stores in Azure's emulator give what the same files here give."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from rocketbed import pipeline
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.session import build_session
from tests.support.logs import healthy, reasons, rows, same
from tests.support.peer.azure import ACCOUNT, ADDRESS, AzureServer, azure_server


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    with azure_server() as server:
        yield server


@pytest.mark.ci
@pytest.mark.parametrize("view", ["records", "consumequeue", "blocks", "files"])
def test_every_view_is_the_same(azure: AzureServer, tmp_path: Path, view: str) -> None:
    log = healthy(tmp_path)
    location = azure.put(log.root, f"same-{view}")
    options: dict[str, Any] = {"view": view, **azure.options}
    if view != "files":
        options["splitBytes"] = 700
    actual_rows = rows(location, **options)
    assert same(actual_rows) == same(rows(log.root, view=view))
    if view == "files":
        assert actual_rows[0]["path"] == f"{location}/commitlog/{0:020d}"


def test_damage_is_found_there_too(azure: AzureServer, tmp_path: Path) -> None:
    log = healthy(tmp_path)
    log.flip(log.offsets[3] + 90)
    log.write(log.offsets[-1] + 60, bytes(log.sizes[-1] - 60))
    log.close()
    location = azure.put(log.root, "damage")
    actual_rows = rows(location, **azure.options)
    assert same(actual_rows) == same(rows(log.root))
    assert [why for _, why in reasons(actual_rows)] == ["crc_mismatch", "torn_tail"]


def test_missing_store_is_named(azure: AzureServer) -> None:
    with pytest.raises(PipelineError, match=f"{ADDRESS}/nope is no store directory"):
        rows(f"{ADDRESS}/nope", **azure.options)


def test_spark_takes_the_settings_that_its_configuration_has(
    azure: AzureServer, tmp_path: Path
) -> None:
    log = healthy(tmp_path)
    azure.put(log.root, "many/orders/store")
    azure.put(log.root, "many/bills/store")
    conf = {f"spark.hadoop.{name}": value for name, value in azure.options.items()}
    spark = build_session("azure", master="local[2]", conf=conf)
    try:
        stores = f"{ADDRESS}/many/*/store".replace("abfss", "abfs")
        frame = pipeline.read(spark, stores, ["broker", "body"], splitBytes="2k")
        counts = {row["broker"]: row["count"] for row in frame.groupBy("broker").count().collect()}
        assert counts == {"orders-store": 60, "bills-store": 60}
        wrong = {f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": "AAAA"}
        with pytest.raises(AnalysisException, match=r"ROCKETBED_UNREADABLE.*AuthorizationFailure"):
            pipeline.read(spark, f"{ADDRESS}/many/orders/store", **wrong).collect()
        signed = {"fs.azure.sas.fixed.token": "sv=1&sig=c2VjcmV0"}
        with pytest.raises(AnalysisException, match=r"ROCKETBED_UNREADABLE.*abfss://") as caught:
            pipeline.read(spark, f"{ADDRESS}/many/orders/store", **signed).collect()
        assert "c2VjcmV0" not in str(caught.value)
        with pytest.raises(AnalysisException, match=r"\[ROCKETBED_NOT_A_STORE\] abfss://"):
            pipeline.read(spark, f"{ADDRESS}/many/orders").collect()
    finally:
        spark.stop()
