"""Spark's filters as conditions on records."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from rocketbed.pipeline.files.decode import Wanted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANGES = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def push(wanted: Wanted, filters: Sequence[Filter]) -> tuple[Wanted, list[Filter]]:
    """The conditions narrowed by those filters that are wholly taken, and the other filters."""
    rest = []
    for each in filters:
        narrowed = _narrow(wanted, each)
        if narrowed is None:
            rest.append(each)
        else:
            wanted = narrowed
    return wanted, rest


def _narrow(wanted: Wanted, condition: Filter) -> Wanted | None:
    column = getattr(condition, "attribute", None)
    if column is None or len(column) != 1:
        return None
    name = column[0]
    if isinstance(condition, IsNotNull) and name == "physical_offset":
        return wanted
    values = _values(condition)
    if values is not None and name == "topic":
        return replace(wanted, topics=_both(wanted.topics, values))
    if values is not None and name == "queue_id":
        return replace(wanted, queue_ids=_both(wanted.queue_ids, values))
    if values is not None and name == "physical_offset" and len(values) == 1:
        (value,) = values
        return _narrow_offset(_narrow_offset(wanted, low=value), high=value + 1)
    if isinstance(condition, _RANGES) and condition.value is not None:
        if name == "physical_offset":
            return _offset_range(wanted, condition)
        if name == "store_timestamp":
            return _time_range(wanted, condition)
    return None


def _values(condition: Filter) -> frozenset[Any] | None:
    """Values that a condition of equality allows; None for other conditions and for NULL."""
    if isinstance(condition, (EqualTo, EqualNullSafe)) and condition.value is not None:
        return frozenset((condition.value,))
    if isinstance(condition, In):
        return frozenset(value for value in condition.value if value is not None)
    return None


def _both(old: frozenset[Any] | None, new: frozenset[Any]) -> frozenset[Any]:
    return new if old is None else old & new


def _offset_range(wanted: Wanted, condition: Any) -> Wanted:
    value = int(condition.value)
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        return _narrow_offset(wanted, low=value + isinstance(condition, GreaterThan))
    return _narrow_offset(wanted, high=value + isinstance(condition, LessThanOrEqual))


def _narrow_offset(wanted: Wanted, *, low: int | None = None, high: int | None = None) -> Wanted:
    if low is not None:
        low = low if wanted.start_offset is None else max(low, wanted.start_offset)
        return replace(wanted, start_offset=max(low, 0))
    if high is not None:
        high = high if wanted.end_offset is None else min(high, wanted.end_offset)
        return replace(wanted, end_offset=max(high, 0))
    return wanted


def _time_range(wanted: Wanted, condition: Any) -> Wanted | None:
    """Times are whole milliseconds, so a bound between two of them moves up to the later."""
    value = condition.value
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    since = value - _EPOCH
    whole, odd = divmod(since, timedelta(milliseconds=1))
    least = whole + (odd > timedelta(0))
    if isinstance(condition, (GreaterThan, LessThanOrEqual)) and not odd:
        least += 1
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        low = least if wanted.start_ms is None else max(least, wanted.start_ms)
        return replace(wanted, start_ms=low)
    high = least if wanted.end_ms is None else min(least, wanted.end_ms)
    return replace(wanted, end_ms=high)
