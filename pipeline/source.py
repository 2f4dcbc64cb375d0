"""The data source `rocketbed`: `spark.read.format("rocketbed").option("path", ...)`.

Spark discovers it through the module `pyspark_rocketbed`. A schema given by the user is the
projection: any columns of `pipeline.schema.RECORDS` (or of the view's table), in any order.
Options: `pipeline.options.Options`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from rocketbed.pipeline.build import Planned
from rocketbed.pipeline.errors import PipelineError, user_errors
from rocketbed.pipeline.option_table import NO_TABLES, OptionError, Use
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import (
    VIEWS,
    SchemaError,
    arrow_schema,
    described,
    renamed,
    spelled,
    view_ddl,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from rocketbed.pipeline.files.reading import Plan
    from rocketbed.pipeline.sink.committed import Marked
    from rocketbed.pipeline.wire.plan import WirePlan


class Part(InputPartition):
    """Share of one task; only the plan knows its content."""

    def __init__(self, share: Any) -> None:
        super().__init__(share)
        self.share = share


class RocketbedSource(DataSource):
    """Stored messages of rocketbed and RocketMQ as tables.

    `spark.read.format("rocketbed").schema("topic string, body binary").load("/data/store")` reads
    just these two columns. Every column may be null. Options: `pipeline.options.Options`.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "rocketbed"

    @user_errors
    def schema(self) -> str:
        """The view's columns when the user gives no schema."""
        options = self._options()
        return view_ddl(options.view, corrupt=options.corrupt_column)

    @user_errors
    def reader(self, schema: "StructType") -> DataSourceReader:
        """A batch reader of exactly these columns."""
        options = self._options(Use.BATCH)
        if not self.options:
            raise OptionError(f"option path is missing, or endpoints; of a table: {NO_TABLES}")
        if options.only_committed:
            return CommittedReader(schema, options)
        return Reader(schema, options)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """A stream of exactly these columns: see `pipeline.streams.reader`."""
        from rocketbed.pipeline.streams.reader import RefusedStream, StreamReader

        try:
            options = self._options(Use.STREAM)
            return StreamReader(checked_schema(schema, options), options, schema.fieldNames())
        except PipelineError as exc:
            return RefusedStream(exc)

    @user_errors
    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """A batch job's writer into topics: see `pipeline.sink.writer`."""
        from rocketbed.pipeline.sink.writer import TopicWriter

        return TopicWriter(schema, dict(self.options), overwrite=overwrite)

    @user_errors
    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        """A streaming query's writer into topics: see `pipeline.sink.writer`."""
        from rocketbed.pipeline.sink.writer import TopicStreamWriter

        return TopicStreamWriter(schema, dict(self.options), overwrite=overwrite)

    def _options(self, *uses: Use) -> Options:
        return Options.parse(dict(self.options), *uses)


RocketbedSource.__doc__ = f"{RocketbedSource.__doc__}\n" + "\n\n".join(
    f"    Columns of view={view}:\n\n{described(view)}" for view in VIEWS
)


class Reader(Planned, DataSourceReader):
    """Reads the files of store directories, or the queues of a live cluster.

    It takes none of Spark's filters: `pushFilters` would narrow later queries
    (docs/internal/decisions.md).
    """

    def __init__(self, schema: "StructType", options: Options) -> None:
        self.arrow = checked_schema(schema, options)
        self.names = schema.fieldNames()
        self.plan = plan_of(options)

    @user_errors
    def partitions(self) -> list[InputPartition]:
        """Return a partition for each split; without any, Spark makes one of `None`."""
        return [Part(split) for split in self.plan.splits()]

    @user_errors
    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        """Read the rows of one partition."""
        if not isinstance(partition, Part):
            return iter(())
        return renamed(self.plan.read(partition.share, self.arrow), self.names)


class CommittedReader(Reader):
    """A reader with `onlyCommitted`: see `pipeline.sink.committed`."""

    def __init__(self, schema: "StructType", options: Options) -> None:
        super().__init__(schema, options)
        self.options = options
        self.marked: Marked | None = None
        self.why: PipelineError | OSError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """State that all tasks share, with the present markers: Spark packs the reader before it
        asks for partitions, and packs each partition separately."""
        from rocketbed.pipeline.sink.committed import marked_runs

        try:
            self.marked = marked_runs(self.options)
        except (PipelineError, OSError) as exc:
            self.why = exc  # raised here, it would be a PicklingError of Spark's
            return {}
        return self.__dict__.copy()

    @user_errors
    def partitions(self) -> list[InputPartition]:
        if self.why is not None:
            raise self.why
        return super().partitions()

    @user_errors
    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        """Read the committed rows of one partition."""
        from rocketbed.pipeline.sink.committed import CommittedPart, read_committed

        if not isinstance(partition, Part):
            return iter(())
        assert self.marked is not None
        part = CommittedPart(partition.share, self.marked)
        batches = read_committed(self.plan, part, self.arrow, self.options.corrupt_column)
        return renamed(batches, self.names)


def plan_of(options: Options) -> "Plan | WirePlan":
    """Return the plan of a read: over queues if the option endpoints is set, else over files."""
    if options.endpoints:
        from rocketbed.pipeline.wire.plan import WirePlan

        return WirePlan.of(options)
    from rocketbed.pipeline.files.reading import Plan

    return Plan.of(options)


def checked_schema(schema: "StructType", options: Options) -> "pyarrow.Schema":
    """The Arrow form of the user's schema, in our spelling. Raises `SchemaError` for columns that
    the view lacks, or that are to be of another type or never null: every one may be."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    names = spelled(options.view, schema.fieldNames(), options.corrupt_column)
    ours = arrow_schema(options.view, names, options.corrupt_column)
    theirs = to_arrow_schema(schema, timezone="UTC")
    wrong = [
        f"{mine.name} {mine.type}, not {given.type}"
        for mine, given in zip(ours, theirs, strict=True)
        if mine.type != given.type
    ]
    wrong += [f"{field.name} may be null" for field in schema if not field.nullable]
    if wrong:
        ddl = view_ddl(options.view, names, options.corrupt_column)
        raise SchemaError(f"wrong type in the schema: {'; '.join(wrong)}; write: {ddl}")
    return pyarrow.schema(
        [field.with_name(name) for field, name in zip(theirs, names, strict=True)]
    )
