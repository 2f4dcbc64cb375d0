"""What a user can say about a stream, beside the options that batch reads have too."""

from dataclasses import dataclass
from typing import Final

from rocketbed.pipeline.options import OptionError, Options, size_in_bytes

RETRY_TIMEOUT_MS: Final = 30_000
RETRY_TIMEOUT_MS_MAX: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Read from `Options.other`, where Spark's names are in lower case."""

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
        if is_flag(options, "onlycommitted"):
            raise OptionError(
                "onlyCommitted is for batch reads: a stream emits messages before it can know "
                "whether their batch will be marked; read uniq_key and properties and decide later"
            )
        if options.start_offset is not None or options.end_offset is not None:
            raise OptionError("startOffset and endOffset are for batch reads: use startingOffsets")
        return cls(
            starting=options.other.get("startingoffsets", "earliest"),
            bytes_max=_number(options, "maxbytespertrigger", "maxBytesPerTrigger"),
            rows_max=_number(options, "maxrowspertrigger", "maxRowsPerTrigger"),
            partitions_min=partitions_min(options),
            limit_s=limit_s(options),
        )


def limit_s(options: Options) -> float:
    """The option `retryTimeoutMs` in seconds. Raises `OptionError`."""
    found = _number(options, "retrytimeoutms", "retryTimeoutMs", most=RETRY_TIMEOUT_MS_MAX)
    return (RETRY_TIMEOUT_MS if found is None else found) / 1000


def partitions_min(options: Options) -> int:
    """The option `minPartitions`, 1 where it is not given. Raises `OptionError`."""
    return _number(options, "minpartitions", "minPartitions") or 1


def is_flag(options: Options, name: str) -> bool:
    """Whether an option of `other` says true. Raises `OptionError`."""
    text = options.other.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} must be true or false, not {text!r}")
    return text == "true"


def _number(options: Options, name: str, spelling: str, *, most: int = 1 << 60) -> int | None:
    text = options.other.get(name)
    if text is None:
        return None
    try:
        value = size_in_bytes(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise OptionError(f"option {spelling}={text!r}: expected a number from 1 to {most}")
    return value
