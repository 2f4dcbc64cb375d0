"""The data source `rocketbed`: `spark.read.format("rocketbed").option("path", ...)`.

Spark finds it by itself through the module `pyspark_rocketbed`. A schema given by the user is the
projection: any columns of `pipeline.schema.RECORDS` (or of the view's table), in any order. Options:
`pipeline.options.Options`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from pipeline.options import Options
from pipeline.schema import SchemaError, arrow_schema, view_ddl

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class Part(InputPartition):
    """One task's share; what it holds is the plan's business."""

    def __init__(self, share: Any) -> None:
        super().__init__(share)
        self.share = share


class RocketbedSource(DataSource):
    """Stored messages of rocketbed and RocketMQ as tables.

    Columns of the view `records` (default): see `pipeline.schema.RECORDS` for types and units.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "rocketbed"

    def schema(self) -> str:
        """The view's columns when the user gives no schema."""
        options = self._options()
        return view_ddl(options.view, corrupt=options.corrupt_column)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A batch reader of exactly these columns; one that takes filters if `pushdown` is on."""
        options = self._options()
        kind = PushdownReader if options.pushdown else Reader
        return kind(schema, options)

    def _options(self) -> Options:
        return Options.parse(dict(self.options))


class Reader(DataSourceReader):
    """Reads the files of store directories."""

    def __init__(self, schema: "StructType", options: Options) -> None:
        from pipeline.reading import Plan

        self.arrow = checked_schema(schema, options)
        self.plan = Plan.of(options)

    def partitions(self) -> list[InputPartition]:
        """One for each split; Spark makes one of `None` out of none."""
        return [Part(split) for split in self.plan.splits()]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        """The rows of one partition."""
        if not isinstance(partition, Part):
            return iter(())
        return self.plan.read(partition.share, self.arrow)


class PushdownReader(Reader):
    """A reader that takes Spark's filters.

    A class of its own, since a reader that has `pushFilters` fails in a session where
    spark.sql.python.filterPushdown.enabled is off, and off is Spark's default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take what can be decided before a row is made; give back the rest."""
        from dataclasses import replace

        from pipeline.pushdown import push

        wanted, rest = push(self.plan.wanted, filters)
        self.plan = replace(self.plan, wanted=wanted)
        return iter(rest)


def checked_schema(schema: "StructType", options: Options) -> "pyarrow.Schema":
    """The Arrow form of the user's schema. Raises `SchemaError` for columns the view lacks."""
    from pyspark.sql.pandas.types import to_arrow_schema

    names = schema.fieldNames()
    ours = arrow_schema(options.view, names, options.corrupt_column)
    theirs = to_arrow_schema(schema, timezone="UTC")
    wrong = [
        f"{mine.name} {mine.type}, not {given.type}"
        for mine, given in zip(ours, theirs, strict=True)
        if mine.type != given.type
    ]
    if wrong:
        ddl = view_ddl(options.view, names, options.corrupt_column)
        raise SchemaError(f"wrong type in the schema: {'; '.join(wrong)}; write: {ddl}")
    return theirs
