"""Settings of the broker that wrote a directory, and its JSON files.

Most sizes can be derived from the files. The others come from `broker.conf` or the command line,
under RocketMQ's own names. The JSON is fastjson's dialect: integer keys of maps have no quotes,
which Python's parser refuses (store.md 1.6).
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rocketbed.inspect.properties import DELAY_LEVELS_DEFAULT, delay_levels

INDEX_SLOTS_DEFAULT = 5_000_000
INDEX_ENTRIES_DEFAULT = 20_000_000
SEGMENT_SIZE_DEFAULT = 1 << 30
QUEUE_SEGMENT_SIZE_DEFAULT = 6_000_000
BATCH_QUEUE_SEGMENT_SIZE_DEFAULT = 13_800_000

_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)


class SettingsError(Exception):
    """A setting that cannot be read; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Facts about the broker that the reader needs. None: derive it from the files."""

    commitlog_paths: tuple[str, ...] = ()
    """storePathCommitLog; empty: `commitlog` in the root."""
    segment_size: int | None = None
    """mappedFileSizeCommitLog, bytes."""
    queue_segment_size: int | None = None
    """mappedFileSizeConsumeQueue, bytes, rounded up to whole units."""
    batch_queue_segment_size: int | None = None
    """mapperFileSizeBatchConsumeQueue, bytes."""
    index_slots: int | None = None
    """maxHashSlotNum."""
    index_entries: int | None = None
    """maxIndexNum."""
    delay_levels: Mapping[int, int] = field(
        default_factory=lambda: delay_levels(DELAY_LEVELS_DEFAULT)
    )
    """messageDelayLevel: milliseconds by level."""
    enable_lmq: bool = False
    """enableLmq: multi-dispatch queues are built (store.md 3.6)."""
    store_type: str = "default"
    """storeType; queues of defaultRocksDB cannot be read."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "Settings":
        """Read settings by RocketMQ's names; names that do not matter here are ignored.

        Raises `SettingsError` for a value that cannot be read.
        """
        levels = properties.get("messageDelayLevel", DELAY_LEVELS_DEFAULT)
        try:
            level_delays = delay_levels(levels)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        paths = properties.get("storePathCommitLog", "")
        queue_size = _number(properties, "mappedFileSizeConsumeQueue")
        return cls(
            commitlog_paths=tuple(path.strip() for path in paths.split(",") if path.strip()),
            segment_size=_number(properties, "mappedFileSizeCommitLog"),
            queue_segment_size=None if queue_size is None else -(-queue_size // 20) * 20,
            batch_queue_segment_size=_number(properties, "mapperFileSizeBatchConsumeQueue"),
            index_slots=_number(properties, "maxHashSlotNum"),
            index_entries=_number(properties, "maxIndexNum"),
            delay_levels=level_delays,
            enable_lmq=properties.get("enableLmq", "false").strip().lower() == "true",
            store_type=properties.get("storeType", "default").strip(),
        )


def read_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file: `name=value` or `name:value` lines, `#` and `!` comments."""
    properties: dict[str, str] = {}
    for line in re.split(r"\r\n|\r|\n", re.sub(r"\\\r?\n[ \t]*", "", text)):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, _, value = re.sub(r"[=:]", "=", stripped, count=1).partition("=")
        properties[name.strip()] = value.strip()
    return properties


def read_json(text: str) -> Any:
    """Parse a value in fastjson's dialect. Raises `ValueError` if it is not valid there either.

    As in the broker, numbers that are not finite and nesting without end are refused.
    """
    try:
        return json.loads(_BARE_KEY.sub(_quote, text), parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that a broker reads")
    return value


def _quote(match: re.Match[str]) -> str:
    if match.group(2) is None:
        return match.group(0)
    return f'{match.group(1)}"{match.group(2)}"{match.group(3)}'


def _number(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise SettingsError(f"{name}: {text!r} is not a number above 0")
    return value
