"""Options of the data source, read once and checked before anything else happens.

Names are Spark's way: case-insensitive, units in the value (`128m`), the error modes of Spark's own
text sources.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.schema import CORRUPT, VIEWS

MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
SYNC_MODES: Final = ("auto", "index", "walk", "scan")
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ELSEWHERE: Final = frozenset(
    (
        "startingoffsets",
        "maxbytespertrigger",
        "maxrowspertrigger",
        "minpartitions",
        "topic",
        "rate",
        "retrytimeoutms",
        "exactlyonce",
        "onlycommitted",
        "marker",
        "transport",
    )
)
"""Options that streams and writers read for themselves, in lower case."""


class OptionError(PipelineError):
    """An option is missing, unknown or cannot be understood."""

    exit_code = 64


def size_in_bytes(text: str) -> int:
    """Bytes of `4096`, `64k`, `128m`, `1g` (powers of 1024). Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("a number of bytes such as 1048576, 64k, 128m or 1g")
    return int(match[1]) * _UNITS[match[2].lower()]


def time_in_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of them, or of an ISO-8601 time (UTC if it names no
    zone).

    Raises `ValueError`.
    """
    text = text.strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("milliseconds since 1970 or a time such as 2026-11-20T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def _positive(text: str) -> int:
    value = size_in_bytes(text)
    if value < 1:
        raise ValueError("a number above 0")
    return value


def _offset(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("a physical offset in bytes, 0 or more")
    return int(text)


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("topics, separated by commas")
    return names


def _one_of(*choices: str) -> Callable[[str], str]:
    by_name = {choice.lower(): choice for choice in choices}

    def choose(text: str) -> str:
        if text.strip().lower() not in by_name:
            raise ValueError("one of " + ", ".join(choices))
        return by_name[text.strip().lower()]

    return choose


def _text(text: str) -> str:
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a reader is asked to do. Sizes in bytes, times in milliseconds since 1970."""

    path: str = ""
    """A store's root, or a list `broker/replica=root,...` (`splits.parse_paths`)."""
    endpoints: str = ""
    """Name servers `host:port;host:port`: read through the client protocol, in place of `path`."""
    view: str = "records"
    topics: frozenset[str] | None = None
    start_offset: int | None = None
    """Physical offset: records that begin at it or behind."""
    end_offset: int | None = None
    """Physical offset: records that begin before it."""
    start_timestamp: int | None = None
    """Store time, inclusive. Files whose follower began over ten minutes before are not opened."""
    end_timestamp: int | None = None
    """Store time, exclusive."""
    split_bytes: int = 128 << 20
    """Bytes of the log for one task; under 64 MiB a task costs more than its work."""
    block_bytes: int = 1 << 20
    batch_rows: int = 4096
    sync_mode: str = "auto"
    mode: str = "PERMISSIVE"
    corrupt_column: str = CORRUPT
    verify_crc: bool = True
    decompress: bool = True
    read_uncommitted: bool = False
    """False: stop at what every listed replica of a broker holds."""
    fail_on_data_loss: bool = True
    pushdown: bool = False
    """Take filters from Spark: needs spark.sql.python.filterPushdown.enabled=true."""
    other: Mapping[str, str] = field(default_factory=dict)
    """Options of streams and writers, by lower-case name."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Options from Spark's mapping. Raises `OptionError` naming the option and what it
        takes."""
        values: dict[str, Any] = {}
        other: dict[str, str] = {}
        for name, text in given.items():
            lower = name.lower()
            if lower in _ELSEWHERE:
                other[lower] = text
            elif lower == "paths":
                values["path"] = ",".join(json.loads(text))
            elif lower in _BY_NAME:
                spelling, attribute, read = _BY_NAME[lower]
                try:
                    values[attribute] = read(str(text))
                except ValueError as exc:
                    raise OptionError(f"option {spelling}={text!r}: expected {exc}") from None
            else:
                valid = ", ".join(sorted(row[0] for row in _TABLE))
                raise OptionError(f"unknown option {name}; options: {valid}")
        return cls(**values, other=other)

    def __post_init__(self) -> None:
        low, high = self.start_offset, self.end_offset
        if low is not None and high is not None and low > high:
            raise OptionError(f"startOffset {low} is after endOffset {high}")
        low, high = self.start_timestamp, self.end_timestamp
        if low is not None and high is not None and low > high:
            raise OptionError(f"startTimestamp {low} is after endTimestamp {high}")


_TABLE: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("path", "path", _text),
    ("endpoints", "endpoints", _text),
    ("view", "view", _one_of(*VIEWS)),
    ("topics", "topics", _names),
    ("startOffset", "start_offset", _offset),
    ("endOffset", "end_offset", _offset),
    ("startTimestamp", "start_timestamp", time_in_ms),
    ("endTimestamp", "end_timestamp", time_in_ms),
    ("splitBytes", "split_bytes", _positive),
    ("blockBytes", "block_bytes", _positive),
    ("batchRows", "batch_rows", _positive),
    ("syncMode", "sync_mode", _one_of(*SYNC_MODES)),
    ("mode", "mode", _one_of(*MODES)),
    ("columnNameOfCorruptRecord", "corrupt_column", _text),
    ("verifyCrc", "verify_crc", _flag),
    ("decompress", "decompress", _flag),
    ("readUncommitted", "read_uncommitted", _flag),
    ("failOnDataLoss", "fail_on_data_loss", _flag),
    ("pushdown", "pushdown", _flag),
)
_BY_NAME: Final = {row[0].lower(): row for row in _TABLE}
assert {row[1] for row in _TABLE} | {"other"} == {each.name for each in fields(Options)}
