"""What a user can say about a stream, beside the options that batch reads have too."""

from dataclasses import dataclass

from rocketbed.pipeline.option_table import RETRY_TIMEOUT_MS, OptionError
from rocketbed.pipeline.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Those of `Options` that streams alone have, and some checks."""

    starting: str = "earliest"
    """`startingOffsets`: `earliest`, `latest` or JSON; counts without a checkpoint only."""
    bytes_max: int | None = None
    """`maxBytesPerTrigger`: of the log, for all brokers together; a batch takes at least one
    record of each that has any. Over endpoints only roughly: sizes are known after the pull."""
    rows_max: int | None = None
    """`maxRowsPerTrigger`: the same in records; over `path` those of all topics count."""
    partitions_min: int = 1
    """`minPartitions`: split a batch into at least this many tasks if it is long enough."""
    limit_s: float = RETRY_TIMEOUT_MS / 1000
    """`retryTimeoutMs`: how long a replica, a broker or a topic may be away or behind before it is
    an error."""

    @classmethod
    def of(cls, options: Options) -> "StreamOptions":
        """Raises `OptionError`."""
        if options.view != "records":
            raise OptionError(f"a stream supports only view=records, not {options.view}")
        return cls(
            starting=options.starting_offsets,
            bytes_max=options.max_bytes_per_trigger,
            rows_max=options.max_rows_per_trigger,
            partitions_min=options.min_partitions,
            limit_s=options.limit_s,
        )
