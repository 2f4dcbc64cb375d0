"""Writing of a part with Spark, and counting of the written rows.

    OUT/part=NAME/topic=T/date=D/*                  formats of files
    OUT, with a column `part` before the others     formats of tables: Delta, Iceberg

A part that is written again replaces its earlier files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.export.manifest import Part
from rocketbed.pipeline.jobs.export.new import NewPart
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.jobs.failures import SparkFailed, explain
from rocketbed.wire.message import INNER_BATCH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter

FILES: Final = ("parquet", "orc", "json", "csv", "avro", "xml")
"""Formats whose files lie in directories; any other one is treated as a table format."""
PACKED: Final = ("parquet", "orc")
"""Formats that are compressed by default."""
NEED_JARS: Final = {"delta": "io.delta:delta-spark", "iceberg": "org.apache.iceberg:iceberg-spark"}
JAR_ERRORS: Final = (
    "DATA_SOURCE_NOT_FOUND",
    "ClassNotFoundException",
    "NoClassDefFoundError",
    "NoSuchMethodError",
    "IncompatibleClassChangeError",
    "AbstractMethodError",
)
"""Words in errors of jars that are missing, or were built for another Spark."""
DROPS: Final = "DROPMALFORMED"
DATE: Final = "date"
PART: Final = "part"
RECORDS_PER_FILE: Final = 1_000_000
EXCLUDED_COLUMNS: Final = ("_corrupt", "headers")
BY: Final = ("string", "int", "bigint", "boolean")
"""Types of columns that may be part of a path."""
UNSUPPORTED_TYPES: Final = {
    "csv": ("binary", "array", "map", "struct"),
    "text": ("binary", "array", "map", "struct", "int", "bigint", "boolean", "timestamp"),
    "xml": ("binary", "array", "map", "struct", "string"),
}
"""Types that a text format cannot represent. Spark refuses only some; of bytes it writes what it
would display. XML has no control characters, and any text of a message may have some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Output format of the messages."""

    format: str = "parquet"
    """Spark's name of the format, in any case; stored in lower case."""
    partition_by: tuple[str, ...] = ("topic", DATE)
    columns: tuple[str, ...] = ()
    compact: bool = False
    """True to shuffle the rows by partition first, for fewer files."""
    records_per_file: int = RECORDS_PER_FILE
    compression: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", self.format.strip().lower())

    def check(self) -> None:
        """Raise `WrongUsage` for settings that cannot be combined."""
        from rocketbed.pipeline.schema import RECORDS

        if not self.format.isidentifier():
            raise WrongUsage(f"--format {self.format}: expected a format of Spark's, as parquet")
        valid = [name for name, column in RECORDS.items() if column.type in BY and name[0] != "_"]
        if wrong := [name for name in self.partition_by if name not in (*valid, DATE)]:
            raise WrongUsage(
                f"--partition-by {wrong[0]}: expected {DATE} or one of {', '.join(valid)}"
            )
        if self.columns and not set(self.columns) - set(self.partition_by):
            raise WrongUsage(
                f"--columns {','.join(self.columns)}: name one that is not of --partition-by"
            )
        if len(set(self.partition_by)) < len(self.partition_by):
            raise WrongUsage(f"--partition-by {','.join(self.partition_by)}: a column stands twice")
        unfit = [
            f"{name} ({RECORDS[name].type})"
            for name in self.columns
            if name not in self.partition_by
            and RECORDS[name].type.startswith(UNSUPPORTED_TYPES.get(self.format, ()))
        ]
        if unfit:
            raise WrongUsage(
                f"--format {self.format} cannot hold {', '.join(unfit)}: name other columns with"
                " --columns, or take another format, as json or parquet"
            )

    @property
    def is_of_files(self) -> bool:
        return self.format in FILES

    @property
    def options(self) -> dict[str, str]:
        """Options for Spark's writer."""
        options = {"maxRecordsPerFile": str(self.records_per_file)}
        packed = self.compression or ("zstd" if self.format in PACKED else "")
        if packed:
            options["compression"] = packed
        if self.format == "xml":
            options["rowTag"] = "message"
        if self.format == "csv":
            # A key may have line ends, and blanks at its ends, which Spark would remove.
            options |= {"header": "true", "multiLine": "true"}
            options |= dict.fromkeys(
                ("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"), "false"
            )
        # A session's mode may be dynamic, which would keep an earlier try's other partitions.
        return options | ({"partitionOverwriteMode": "static"} if self.is_of_files else {})


def partition_names(chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that name directories, in our spelling, whatever their case."""
    from rocketbed.pipeline.schema import spelled

    return tuple(DATE if name.lower() == DATE else name for name in spelled("records", chosen))


def exported_columns(chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the files: those chosen, in any case, or all.

    Raises `WrongUsage` for an unknown column.
    """
    from rocketbed.pipeline.schema import RECORDS, spelled

    names = tuple(spelled("records", chosen))
    if unknown := [name for name in names if name not in RECORDS]:
        raise WrongUsage(f"unknown column {unknown[0]!r}; available columns: {', '.join(RECORDS)}")
    if len(set(names)) < len(names):
        raise WrongUsage(f"--columns {','.join(chosen)}: a column stands twice")
    return names or tuple(name for name in RECORDS if name not in EXCLUDED_COLUMNS)


def write_part(job: Job, form: Form, place: Place, new: NewPart, topics: Mapping[str, str]) -> None:
    """Write a part, and enter the counts in it. Raises `PipelineError`."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    part = new.part
    measured, dropped = Observation("export"), Observation("dropped")
    source = new.source | dict(topics)
    drops = source["mode"].upper() == DROPS
    if drops:
        source["mode"] = "PERMISSIVE"  # dropping them here makes it possible to count them
    rows = _rows(job, form, source, drops)
    if drops:
        bad = f.col("_corrupt").isNotNull()
        rows = rows.observe(dropped, f.count_if(bad).alias("rows")).where(~bad)
    rows = rows.observe(measured, *_measures())
    rows = rows.where(f.col("topic").isNotNull()).withColumn(DATE, f.to_date("store_timestamp"))
    data_columns = [name for name in form.columns if name not in form.partition_by]
    rows = rows.select(*data_columns, *form.partition_by)
    if form.compact and form.partition_by:
        rows = rows.repartition(*form.partition_by)
    target = place.for_spark
    try:
        if form.is_of_files:
            target += f"/{part.name}"
            _writer(rows, form, form.partition_by).save(target)
        else:
            _into_table(rows, form, part, target)
    except Exception as error:
        if form.format in NEED_JARS or "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        raise WrongUsage(
            f"--format {form.format}: this Spark has none of that name; it has parquet, orc, json"
            " and csv, and others by --conf spark.jars.packages=..."
        ) from error
    counts = measured.get
    part.rows, part.malformed = counts["rows"], counts["malformed"]
    part.wrong_crc, part.crc = counts["wrong_crc"], counts["crc"] or 0
    if drops and (count := dropped.get["rows"]):
        job.report.notes.append(f"{new.label}: {count} that cannot be read were dropped")
    written = _written(job, form, part, rows, target)
    if written != part.rows:
        raise PipelineError(
            f"{target} holds {written} rows and {part.rows} were read: run the export again"
        )


def _into_table(rows: "DataFrame", form: Form, part: Part, target: str) -> None:
    """Write a part into a table. Raises `PipelineError`."""
    from pyspark.sql import functions as f

    whole = rows.select(f.lit(_value(part)).alias(PART), "*")
    # Replaces only the partitions that are written; the first name is Delta's, the second
    # Iceberg's.
    dynamic = {"partitionOverwriteMode": "dynamic", "overwrite-mode": "dynamic"}
    writer = _writer(whole, form, (PART, *form.partition_by)).options(**dynamic)
    try:
        writer.save(target)
    except Exception as error:
        explained = explain(error)
        is_of_jars = any(word in str(error) for word in JAR_ERRORS)
        if explained is None or not is_of_jars or form.format not in NEED_JARS:
            raise
        raise SparkFailed(
            f"{explained}. The format {form.format} needs the jars of {NEED_JARS[form.format]} that"
            " were made for this version of Spark: --conf spark.jars.packages=..."
        ) from error


def _writer(rows: "DataFrame", form: Form, by: Sequence[str]) -> "DataFrameWriter":
    writer = rows.write.mode("overwrite").format(form.format).options(**form.options)
    return writer.partitionBy(*by) if by else writer


def _value(part: Part) -> str:
    return part.name.partition("=")[2]


def _rows(job: Job, form: Form, source: Mapping[str, str], drops: bool) -> "DataFrame":
    from rocketbed.pipeline.schema import RECORDS, records_ddl

    by = [name for name in form.partition_by if name in RECORDS]
    needed = dict.fromkeys(
        [*form.columns, *by, "topic", "store_timestamp", "physical_offset", "body_crc", "sys_flag"]
    )
    needed |= dict.fromkeys(["crc_ok", "_corrupt"])
    if drops:
        needed["body"] = None  # bodies are unpacked only for this column, which may fail
    reader = job.spark.read.format("rocketbed").schema(records_ddl(list(needed)))
    return reader.options(**source).load()


def _measures() -> "list[Column]":
    from pyspark.sql import functions as f

    unframed = f.col("topic").isNull()
    # Records of several messages that were unpacked no longer have the bit.
    is_batch = f.col("sys_flag").bitwiseAND(INNER_BATCH) != 0
    bad = (f.col("crc_ok") == f.lit(False)) | is_batch
    return [
        f.count_if(~unframed).alias("rows"),
        f.count_if(unframed).alias("malformed"),
        f.count_if(~unframed & bad).alias("wrong_crc"),
        f.bit_xor(f.when(~unframed, f.xxhash64("physical_offset", "body_crc"))).alias("crc"),
    ]


def _written(job: Job, form: Form, part: Part, rows: "DataFrame", target: str) -> int:
    """Return the number of stored rows, and enter the files of a file format in the part."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    reader = job.spark.read.format(form.format)
    if not form.is_of_files:
        return reader.load(target).where(f.col(PART) == _value(part)).count()
    schema = StructType([field for field in rows.schema if field.name not in form.partition_by])
    stored = reader.schema(schema).options(**form.options).load(target)
    counted = stored.groupBy("_metadata.file_path", "_metadata.file_size").count()
    part.files = [
        {"path": _below(row["file_path"], part.name), "rows": row["count"], "bytes": row[1]}
        for row in counted.collect()
    ]
    part.files.sort(key=lambda file: str(file["path"]))
    return sum(file["rows"] for file in part.files)


def _below(url: str, name: str) -> str:
    """Return the path of a file below OUT."""
    path = unquote(url)
    return path[path.rindex(f"/{name}/") + 1 :]
