"""Many stored messages at once, on Spark: the data source `rocketbed` and the jobs built on it.

Importing this package imports no Spark: the node, the client and the testbed never need it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rocketbed.pipeline.errors import user_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["lag", "read"]


@user_errors
def read(
    spark: "SparkSession", path: str = "", columns: Sequence[str] | None = None, **options: object
) -> "DataFrame":
    """Stored messages as a table: `read(spark, "/data/store", ["topic", "body"])`.

    `columns` is the projection (None: the view's default ones); asking for few is far cheaper than
    selecting them afterwards, since Spark prunes nothing for a Python source. `options` as in
    `pipeline.options.Options`, in Spark's spelling (`splitBytes="64m"`, `verifyCrc=False`).
    For what is in S3 the session's settings count too (`spark.hadoop.fs.s3a...`).
    """
    from rocketbed.pipeline.fs_settings import settings_of
    from rocketbed.pipeline.schema import view_ddl

    texts = {name: _text(value) for name, value in options.items()}
    names = {name.lower() for name in texts}
    if path:
        texts["path"] = path
        texts |= settings_of(spark.conf.getAll, path, texts.get("stats", ""), explicit=names)
    reader = spark.read.format("rocketbed").options(**texts)
    if columns is not None:
        lower = {name.lower(): value for name, value in texts.items()}
        view = lower.get("view", "records").strip().lower()
        corrupt = lower.get("columnnameofcorruptrecord", "_corrupt")
        reader = reader.schema(view_ddl(view, columns, corrupt))
    return reader.load()


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Lag of a streaming query, from its `lastProgress`: messages by queue, named
    `broker|topic|number`, or bytes of log by broker. Empty before the first batch, and for a
    query that reads other sources."""
    import json

    from rocketbed.pipeline.streams.offsets import KINDS, StreamOffset, lags

    lag_by_name: dict[str, int] = {}
    for source in progress["sources"] if progress else ():
        at, newest = (
            json.loads(offset) if isinstance(offset, str) else offset
            for offset in (source["endOffset"], source["latestOffset"])
        )
        if newest and isinstance(at, dict) and at.get("kind") in KINDS:
            lag_by_name |= lags(
                *(StreamOffset.parse(offset, at["kind"]) for offset in (at, newest))
            )
    return lag_by_name


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
