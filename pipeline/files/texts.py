"""Byte ranges of a window as Arrow columns: topics, property texts, single properties.

Nothing here loops over rows. Of a property that stands twice the last one with a value counts (the
Java client's reading; in a batch every message carries its own id and then the batch's).
"""

from typing import Final

import numpy
import pyarrow
from pyarrow import compute

from rocketbed.inspect.properties import parse_properties, properties_of
from rocketbed.pipeline.files.arrays import mask_of, numbers, numbers_of, slices, texts
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.walk import Positions

PROPERTIES: Final = {"tags": "TAGS", "keys": "KEYS", "uniq_key": "UNIQ_KEY"}
"""Property of each derived column."""
_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


def text_column(frame: Frame, part: str) -> pyarrow.Array:
    """Part `topic` or `properties` of a frame's records; null where it is no UTF-8."""
    if part not in frame.texts:
        is_topic = part == "topic"
        at = frame.topic_at if is_topic else frame.properties_at
        size = frame.topic_size if is_topic else frame.properties_size
        raw = slices(frame.data, at, size)
        try:
            frame.texts[part] = raw.cast(pyarrow.string())
        except pyarrow.ArrowInvalid:
            frame.texts[part] = pyarrow.array(map(_decoded, raw.to_pylist()), pyarrow.string())
    return frame.texts[part]


def property_column(frame: Frame, column: str) -> pyarrow.Array:
    """Column `tags`, `uniq_key`, or `keys` (a list); null where a record has no such property."""
    values = _property(frame, PROPERTIES[column])
    return _split(values) if column == "keys" else values


def header_column(frame: Frame, kind: pyarrow.DataType) -> pyarrow.Array:
    """Make a map of all properties of each record; null if they are not UTF-8. Loops over rows, so
    that a repeated name counts once, as in `parse_properties`."""
    headers = [
        None if text is None else properties_of(text)
        for text in text_column(frame, "properties").to_pylist()
    ]
    absent = numpy.array([one is None for one in headers])
    counts = [len(one or ()) for one in headers]
    offsets = numpy.concatenate(([0], numpy.cumsum(counts))).astype(numpy.int32)
    pairs = [
        (name.encode(), value.encode()) for one in headers if one for name, value in one.items()
    ]
    return pyarrow.MapArray.from_arrays(
        numbers(offsets, absent=numpy.append(absent, False)),
        texts([name for name, _ in pairs], pyarrow.string()),
        texts([value for _, value in pairs], pyarrow.string()),
        kind,
    )


def _property(frame: Frame, name: str) -> pyarrow.Array:
    """Values of one property as texts."""
    ends = frame.properties_at + frame.properties_size
    begins = _last_values(frame, name, ends)
    rows = numpy.flatnonzero(begins >= 0)
    tails = slices(frame.data, begins[rows], (ends - begins)[rows])
    sizes = _find(tails, _VALUE_END)
    sizes = numpy.where(sizes < 0, (ends - begins)[rows], sizes)
    values = slices(frame.data, begins[rows], sizes)
    try:
        texts = values.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        texts = pyarrow.array(map(_decoded, values.to_pylist()), pyarrow.string())
    if len(rows) < frame.count:
        places = numpy.zeros(frame.count, numpy.int64)
        places[rows] = numpy.arange(len(rows))
        absent = begins < 0
        texts = texts.take(numbers(places, absent=absent))
    empty = rows[sizes == 0]
    return _with_earlier(frame, name, texts, empty) if len(empty) else texts


def _last_values(frame: Frame, name: str, ends: Positions) -> Positions:
    """Position of the value of a record's last property of that name; -1 without one."""
    pattern = _VALUE_END + name + _NAME_END
    at, size = frame.properties_at, frame.properties_size
    begins = numpy.full(frame.count, -1, numpy.int64)
    properties = slices(frame.data, at, size)
    is_first = mask_of(compute.starts_with(properties, name + _NAME_END))
    begins[is_first] = at[is_first] + len(name) + 1
    rows = numpy.arange(frame.count)
    places = at
    while len(rows):
        offsets = _find(properties, pattern)
        hit = offsets >= 0
        rows, places = rows[hit], places[hit] + offsets[hit] + len(pattern)
        begins[rows] = places
        properties = slices(frame.data, places, ends[rows] - places)
    return begins


def _find(values: pyarrow.Array, pattern: str) -> Positions:
    """Place of the first occurrence in each value, -1 without one."""
    return numbers_of(compute.find_substring(values, pattern))


def _with_earlier(frame: Frame, name: str, texts: pyarrow.Array, rows: Positions) -> pyarrow.Array:
    """Values where the last property of that name is empty: an earlier one counts then."""
    values = texts.to_pylist()
    for row in rows.tolist():
        start = int(frame.properties_at[row])
        raw = bytes(frame.data[start : start + int(frame.properties_size[row])])
        values[row] = parse_properties(raw).get(name)
    return pyarrow.array(values, pyarrow.string())


def _split(values: pyarrow.Array) -> pyarrow.Array:
    """Keys at their blanks, empty pieces left out."""
    lists = compute.split_pattern(values, " ")
    if compute.min(compute.binary_length(compute.list_flatten(lists))).as_py() == 0:
        pieces = [None if text is None else text.split(" ") for text in values.to_pylist()]
        tidy = [None if each is None else list(filter(None, each)) for each in pieces]
        return pyarrow.array(tidy, pyarrow.list_(pyarrow.string()))
    return lists


def _decoded(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
