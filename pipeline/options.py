"""Options of the data source for reads, parsed and checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from rocketbed.pipeline.option_table import (
    FS,
    READS,
    RETRY_TIMEOUT_MS,
    TABLE,
    OptionError,
    Settings,
    Use,
    common_name,
    read_options,
)
from rocketbed.pipeline.schema import CORRUPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a read, by the table. Sizes in bytes, times in milliseconds since 1970."""

    path: str = ""
    endpoints: str = ""
    view: str = "records"
    topics: frozenset[str] | None = None
    topics_pattern: re.Pattern[str] | None = None
    """In place of `topics`; whole names match."""
    brokers: frozenset[str] | None = None
    clusters: frozenset[str] | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    start_timestamp: int | None = None
    """Start of the store times. Files whose next file began over ten minutes earlier are not
    opened."""
    end_timestamp: int | None = None
    stats: str = ""
    split_bytes: int = 128 << 20
    block_bytes: int = 1 << 20
    batch_rows: int = 4096
    sync_mode: str = "auto"
    mode: str = "PERMISSIVE"
    corrupt_column: str = CORRUPT
    verify_crc: bool = True
    decompress: bool = True
    inner: str = "unpack"
    read_uncommitted: bool = False
    only_committed: bool = False
    fail_on_data_loss: bool = True
    starting_offsets: str = "earliest"
    ending_offsets: str = "latest"
    starting_timestamp: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: int = 900_000
    max_bytes_per_trigger: int | None = None
    max_rows_per_trigger: int | None = None
    min_partitions: int = 1
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    fs: Settings = field(default=(), repr=False)
    """Options of file systems, `fs.*`. May hold secrets."""

    @classmethod
    def parse(cls, texts: Mapping[str, str], *uses: Use) -> "Options":
        """Parse options from Spark's mapping, by default for any kind of read. Raises
        `OptionError`."""
        values = read_options(texts, *(uses or READS))
        if {"startingOffsets", "startingTimestamp"} <= values.keys():
            raise OptionError("give startingOffsets or startingTimestamp, not both")
        if "maxTriggerDelay" in values and "minOffsetsPerTrigger" not in values:
            raise OptionError(
                "maxTriggerDelay says nothing without minOffsetsPerTrigger: give both"
            )
        fs = sorted(name for name in values if common_name(name)[1] in FS)
        settings = tuple((name, values.pop(name)) for name in fs)
        options = cls(fs=settings, **{_attribute(name): value for name, value in values.items()})
        if uses == (Use.STREAM,) and options.view != "records":
            raise OptionError(f"a stream supports only view=records, not {options.view}")
        if uses == (Use.BATCH,) and options.starting_offsets.strip().lower() == "latest":
            raise OptionError(
                "startingOffsets=latest leaves a batch nothing to read: it is for streams"
            )
        return options

    def __post_init__(self) -> None:
        if self.topics is not None and self.topics_pattern is not None:
            raise OptionError("give topics or topicsPattern, not both")
        if self.brokers is not None and self.clusters is not None:
            raise OptionError("give brokers or clusters, not both")
        low, high = self.start_offset, self.end_offset
        if low is not None and high is not None and low > high:
            raise OptionError(f"startOffset {low} is after endOffset {high}")
        low, high = self.start_timestamp, self.end_timestamp
        if low is not None and high is not None and low > high:
            raise OptionError(f"startTimestamp {low} is after endTimestamp {high}")

    @property
    def limit_s(self) -> float:
        """`retryTimeoutMs` in seconds."""
        return self.retry_timeout_ms / 1000


def _attribute(name: str) -> str:
    if name == "columnNameOfCorruptRecord":
        return "corrupt_column"
    return re.sub(r"[A-Z]", lambda letter: "_" + letter[0].lower(), name)


assert {
    _attribute(one.name) for one in TABLE if set(one.uses) & set(READS) and one.name not in FS
} | {"fs"} == {each.name for each in fields(Options)}
