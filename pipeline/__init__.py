"""Many stored messages at once, on Spark: the data source `rocketbed` and the jobs built on it.

Importing this package imports no Spark: the node, the client and the testbed never need it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocketbed.pipeline.errors import user_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read"]


@user_errors
def read(
    spark: "SparkSession", path: str = "", columns: Sequence[str] | None = None, **options: object
) -> "DataFrame":
    """Stored messages as a table: `read(spark, "/data/store", ["topic", "body"])`.

    `columns` is the projection (None: the view's default ones); asking for few is far cheaper than
    selecting them afterwards, since Spark prunes nothing for a Python source. `options` as in
    `pipeline.options.Options`, in Spark's spelling (`splitBytes="64m"`, `pushdown=True`). Filters
    are pushed down where the session allows it. Options of file systems are taken from the session
    too (`spark.hadoop.fs.s3a...`).
    """
    from rocketbed.pipeline.option_table import FS
    from rocketbed.pipeline.schema import view_ddl
    from rocketbed.pipeline.session import PUSHDOWN

    given = {name: _text(value) for name, value in options.items()}
    known = {name.lower() for name in given}
    if path:
        given["path"] = path
        for name in FS:
            value = spark.conf.get(f"spark.hadoop.{name}", None)
            if value and name not in known:
                given[name] = value
    if "pushdown" not in known and spark.conf.get(PUSHDOWN, "false") == "true":
        given["pushdown"] = "true"
    reader = spark.read.format("rocketbed").options(**given)
    if columns is not None:
        lower = {name.lower(): value for name, value in given.items()}
        view = lower.get("view", "records").strip().lower()
        corrupt = lower.get("columnnameofcorruptrecord", "_corrupt")
        reader = reader.schema(view_ddl(view, columns, corrupt))
    return reader.load()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
