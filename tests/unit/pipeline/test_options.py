"""Options: Spark's spellings, and one clear sentence for what cannot be."""

import pytest

from rocketbed.pipeline.options import OptionError, Options, size_in_bytes, time_in_ms


def test_names_are_case_insensitive_and_have_defaults() -> None:
    options = Options.parse({"PATH": "/a", "SplitBytes": "64m", "MODE": "failfast"})
    assert (options.path, options.split_bytes, options.mode) == ("/a", 64 << 20, "FAILFAST")
    assert Options.parse({}).split_bytes == 128 << 20
    assert Options.parse({}).verify_crc
    assert not Options.parse({"verifyCrc": "FALSE"}).verify_crc


def test_several_paths_of_one_load() -> None:
    assert Options.parse({"paths": '["/a","/b"]'}).path == "/a,/b"


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64k", 65536), ("2 MiB", 2 << 20), ("1G", 1 << 30), ("3tb", 3 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1795000000123", 1_795_000_000_123),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00.250", 250),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert time_in_ms(text) == ms


def test_topics_are_a_list() -> None:
    assert Options.parse({"topics": "a, b,"}).topics == frozenset("ab")
    assert Options.parse({}).topics is None


def test_options_of_streams_are_kept_for_them() -> None:
    assert Options.parse({"startingOffsets": "earliest"}).other == {"startingoffsets": "earliest"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("mode", "DROP", "one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ("view", "rows", "one of records, consumequeue, index, blocks, files"),
        ("splitBytes", "lots", "128m"),
        ("splitBytes", "0", "above 0"),
        ("verifyCrc", "yes", "true or false"),
        ("startTimestamp", "yesterday", "2026-11-20T12:00:00Z"),
        ("startOffset", "-4", "0 or more"),
        ("topics", ", ,", "separated by commas"),
        ("pahts", "/x", "; options: "),
    ],
)
def test_what_cannot_be_is_named(name: str, text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        Options.parse({name: text})
    assert name in str(caught.value)
    assert caught.value.exit_code == 64


@pytest.mark.parametrize("what", ["Offset", "Timestamp"])
def test_a_range_that_ends_before_it_begins(what: str) -> None:
    with pytest.raises(OptionError, match="is after"):
        Options.parse({f"start{what}": "7", f"end{what}": "6"})
    Options.parse({f"start{what}": "7", f"end{what}": "7"})
