"""Tag codes and index keys of a frame's records, without a loop over rows."""

from typing import Final, NamedTuple

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from rocketbed.inspect.dispatch import tag_key
from rocketbed.inspect.properties import java_hash
from rocketbed.pipeline.files.arrays import mask_of
from rocketbed.pipeline.files.frame import Frame
from rocketbed.pipeline.files.texts import property_column
from rocketbed.pipeline.jobs.rebuild.hash import Hashes, appended, hashes_of, key_hashes, text_parts

TAG_MARK: Final = tag_key(b"").decode()
TAG_MARK_HASH: Final = java_hash(TAG_MARK)
"""Prefix of an indexed tag, and its hash."""


class NotAscii(NamedTuple):
    """Rows that have to be processed individually."""

    mask: NDArray[numpy.bool_]


class RowKeys(NamedTuple):
    """Keys in the order in which a broker indexes them, with the rows of their records."""

    rows: NDArray[numpy.int64]
    hashes: NDArray[numpy.int32]


def tag_codes(frame: Frame) -> NDArray[numpy.int64] | NotAscii:
    """Return the tag code of each record's unit: its tag's Java hash, 0 without a tag."""
    tags = property_column(frame, "tags")
    offsets, data = text_parts(tags)
    if not _is_ascii(data):
        return NotAscii(_rows_beyond_ascii(tags))
    return hashes_of(offsets, data).view(numpy.int32).astype(numpy.int64)


def row_keys(frame: Frame, starts: Hashes, *, with_tags: bool) -> RowKeys | NotAscii:
    """Return the index keys: each record's unique key, the words of its KEYS, and (`with_tags`)
    its tag.

    `starts` is the hash of `topic#` by row.
    """
    unique = property_column(frame, "uniq_key")
    unique_offsets, unique_data = text_parts(unique)
    lists = property_column(frame, "keys")
    words = lists.flatten()
    word_offsets, word_data = text_parts(words)
    counts = _list_sizes(lists)
    word_rows = numpy.repeat(numpy.arange(frame.count), counts)
    if not (_is_ascii(unique_data) and _is_ascii(word_data)):  # tags: `tag_codes` looked
        mask = _rows_beyond_ascii(unique)
        mask[word_rows[_rows_beyond_ascii(words)]] = True
        return NotAscii(mask)
    unique_sizes = numpy.diff(unique_offsets)
    has_unique = unique_sizes > 0
    tag_offsets, tag_data = text_parts(property_column(frame, "tags"))
    tag_sizes = numpy.diff(tag_offsets)
    has_tag = (tag_sizes > 0) & with_tags
    totals = counts + has_unique + has_tag
    first = numpy.cumsum(totals) - totals
    hashes = numpy.empty(int(totals.sum()), numpy.uint32)
    whole = appended(starts, unique_sizes, hashes_of(unique_offsets, unique_data))
    hashes[first[has_unique]] = whole[has_unique]
    within = numpy.arange(len(word_rows)) - (numpy.cumsum(counts) - counts)[word_rows]
    places = (first + has_unique)[word_rows] + within
    word_sizes = numpy.diff(word_offsets)
    hashes[places] = appended(starts[word_rows], word_sizes, hashes_of(word_offsets, word_data))
    if with_tags:
        marks = numpy.full(frame.count, len(TAG_MARK))
        tag_starts = appended(starts, marks, numpy.full(frame.count, TAG_MARK_HASH, numpy.uint32))
        whole = appended(tag_starts, tag_sizes, hashes_of(tag_offsets, tag_data))
        hashes[(first + totals - 1)[has_tag]] = whole[has_tag]
    return RowKeys(numpy.repeat(numpy.arange(frame.count), totals), key_hashes(hashes))


def _list_sizes(lists: pyarrow.Array) -> NDArray[numpy.int64]:
    """Return the number of words of each list; 0 for a null."""
    offsets = numpy.frombuffer(lists.buffers()[1], numpy.int32)
    offsets = offsets[lists.offset : lists.offset + len(lists) + 1]
    sizes = numpy.diff(offsets).astype(numpy.int64)
    if lists.null_count:
        sizes[mask_of(lists.is_null())] = 0
    return sizes


def _is_ascii(data: NDArray[numpy.uint8]) -> bool:
    return not len(data) or int(data.max()) < 0x80


def _rows_beyond_ascii(values: pyarrow.Array) -> NDArray[numpy.bool_]:
    is_plain = compute.fill_null(compute.string_is_ascii(values), fill_value=True)
    return ~mask_of(is_plain)
