"""Options: Spark's spellings, and one clear sentence for what cannot be."""

import pytest

from rocketbed.pipeline.errors import Condition
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.option_table import (
    READS,
    TABLE,
    Option,
    OptionError,
    Use,
    read_options,
)
from rocketbed.pipeline.option_values import size_in_bytes, time_in_ms
from rocketbed.pipeline.options import Options


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"path": "x", "startingTimestamp": "1", "startingOffsets": "latest"}, "not both"),
        ({"path": "x", "startingTimestamp": "1", "startingOffsets": "earliest"}, "not both"),
        ({"path": "x", "minOffsetsPerTrigger": "5"}, "is for endpoints"),
        ({"endpoints": "h:1", "syncMode": "walk"}, "is for path"),
        ({"path": "x", "topics": "T", "topicsPattern": "T"}, "not both"),
        ({"path": "x", "topicsPattern": "("}, "a regular expression"),
        ({"endpoints": "h:1", "maxTriggerDelay": "1m"}, "without minOffsetsPerTrigger: give both"),
        ({"endpoints": "h:1", "maxTriggerDelay": "soon"}, "a duration such as"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, str], pattern: str) -> None:
    with pytest.raises(OptionError, match=pattern):
        Options.parse(options)


def test_durations() -> None:
    options = {"endpoints": "h:1", "minOffsetsPerTrigger": "1k"}
    assert Options.parse(options).max_trigger_delay == 15 * 60_000
    for text, expected in (("250", 250), ("90s", 90_000), ("2 h", 7_200_000), ("1min", 60_000)):
        assert Options.parse({**options, "maxTriggerDelay": text}).max_trigger_delay == expected


def test_names_are_case_insensitive_and_have_defaults() -> None:
    options = Options.parse({"PATH": "/a", "SplitBytes": "64m", "MODE": "failfast"})
    assert (options.path, options.split_bytes, options.mode) == ("/a", 64 << 20, "FAILFAST")
    assert Options.parse({}).split_bytes == 128 << 20
    assert Options.parse({}).verify_crc
    assert not Options.parse({"verifyCrc": "FALSE"}).verify_crc


def test_several_paths_of_one_load() -> None:
    assert Options.parse({"paths": '["/a","/b"]'}).path == "/a,/b"
    for text in ("[1]", "/a", '{"a": "/b"}', "[" * 100_000):
        with pytest.raises(OptionError, match=r"paths=.*expected a JSON list of paths"):
            Options.parse({"paths": text})


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
        ("1970-01-01 00:00:00.2501", 251),
        ("1969-12-31 23:59:59.9994", 0),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert time_in_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("1763640000", "seconds"),
        ("1763640000000000", "microseconds"),
        ("1763640000000000000", "nanoseconds"),
    ],
)
def test_a_time_in_another_unit_is_refused(text: str, unit: str) -> None:
    pattern = rf"'{text}': expected milliseconds since 1970 \(1763640000000, if these are {unit}\)"
    with pytest.raises(OptionError, match=pattern):
        Options.parse({"startTimestamp": text})
    for text in ("1763640000000", "253402300799999", str(2**63 - 1)):
        assert time_in_ms(text) == int(text)
    assert time_in_ms("-1763640000") == -1763640000


def test_topics_are_a_list() -> None:
    assert Options.parse({"topics": "a, b,"}).topics == frozenset("ab")
    assert Options.parse({}).topics is None


@pytest.mark.parametrize(
    ("use", "name", "pattern"),
    [
        (Use.STREAM, "endingOffsets", "is for batch reads, not streams"),
        (Use.BATCH, "maxRowsPerTrigger", "is for streams, not batch reads"),
        (Use.BATCH, "topic", r"is for batch writes and stream writes.*\(is topics meant\?\)"),
        (Use.STREAM, "topic", r"\(is topics meant\?\)"),
        (Use.STREAM, "startOffset", r"is for batch reads.*\(is startingOffsets meant\?\)"),
        (Use.STREAM, "onlyCommitted", "is for batch reads, not streams"),
        (Use.WRITE, "topics", r"\(is topic meant\?\)"),
        (Use.WRITE, "checkpointLocation", "unknown option"),
        (Use.STREAM_WRITE, "jobId", "is for batch writes, not stream writes"),
        (Use.BATCH, "maxRowPerTrigger", r"\(is maxRowsPerTrigger meant\? It is for streams\)"),
        (Use.WRITE, "startOffst", r"\(is startOffset meant\? It is for batch reads\)"),
        *((use, name, "unknown option") for use in Use for name in ("rate", "marker", "transport")),
    ],
)
def test_misplaced_option_is_an_error_with_the_nearest_name(
    use: Use, name: str, pattern: str
) -> None:
    with pytest.raises(OptionError, match=pattern) as caught:
        read_options({name: "1"}, use)
    # All of them are told where nothing better is known.
    is_lost = name in ("rate", "marker", "transport", "checkpointLocation")
    assert (f"; options of {use.value}: " in str(caught.value)) is is_lost
    assert "meant" not in str(caught.value) or not (is_lost or name == "onlyCommitted")
    assert str(caught.value).count("fs.s3a") == (is_lost and use in READS)


@pytest.mark.parametrize("use", Use)
def test_pushdown_option_explains_its_absence(use: Use) -> None:
    with pytest.raises(OptionError, match=r"pushed down.*Give topics") as caught:
        read_options({"pushDown": "false"}, use)
    assert caught.value.condition is Condition.UNKNOWN_OPTION


def test_sparks_own_writer_options_are_ignored() -> None:
    assert read_options({"checkpointLocation": "/c"}, Use.STREAM_WRITE) == {}


def test_any_text_is_taken_by_few_options() -> None:
    def takes(option: Option) -> bool:
        try:
            option.read("?")
        except ValueError:
            return False
        return True

    assert [option.name for option in TABLE if takes(option)] == [
        "path",
        "topics",
        "brokers",
        "clusters",
        "stats",
        "columnNameOfCorruptRecord",
        "topic",
        "fs.s3a.endpoint.region",
        "fs.s3a.access.key",
        "fs.s3a.secret.key",
        "fs.s3a.session.token",
        "fs.azure.account.oauth2.client.id",
        "fs.azure.account.oauth2.client.secret",
    ]


def test_secrets_are_not_shown() -> None:
    options = Options.parse({"fs.s3a.secret.key": "hidden", "path": "/x"})
    assert options.fs == (("fs.s3a.secret.key", "hidden"),)
    assert "hidden" not in repr(options)
    with pytest.raises(OptionError, match=r"option fs\.s3a\.secret\.key: expected one word"):
        Options.parse({"FS.s3a.secret.key": "hid den"})
    for name in ("account.key", "sas.fixed.token", "account.oauth2.client.secret"):
        with pytest.raises(
            OptionError, match=rf"option fs\.azure\.{name}\.a\.b: expected"
        ) as caught:
            Options.parse({f"fs.azure.{name}.a.b": "hid den"})
        assert "hid den" not in str(caught.value)
    for text in ("user:h1dden@h:1", "http://user:h1dden@h:1"):
        with pytest.raises(OptionError, match="without a scheme, a user or a path") as caught:
            Options.parse({"endpoints": text})
        assert "h1dden" not in str(caught.value)
    (replica,) = parse_paths("s3a://bucket/store", options.fs)
    assert "hidden" not in repr(replica)


def test_settings_of_azure_are_as_hadoop_writes_them() -> None:
    options = {
        "fs.azure.account.oauth.provider.type": "org.apache.hadoop.x.MsiTokenProvider",
        "fs.azure.account.oauth2.client.endpoint": "https://login.x.com/ten/oauth2/v2.0/token",
        "fs.azure.sas.fixed.token.Acc.dfs.core.windows.net": "sv=1&sig=a%2B%3D",
    }
    assert Options.parse({"path": "/x", **options}).fs == (
        ("fs.azure.account.oauth.provider.type", "MsiTokenProvider"),
        ("fs.azure.account.oauth2.client.endpoint", "https://login.x.com/ten"),
        ("fs.azure.sas.fixed.token.acc.dfs.core.windows.net", "?sv=1&sig=a%2B%3D"),
    )


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("fs.s3a.endpoint", "http://x/y", "host:port"),
        ("endpoints", "127.0.0.1", r"host:port;host:port .*'127\.0\.0\.1'"),
        ("fs.s3a.path.style.access", "yes", "one of true, false"),
        ("fs.s3a.aws.credentials.provider", "x.Simple", "some of AnonymousAWSCred"),
        ("fs.azure.endpoint", "http://x/account", "host:port"),
        ("fs.azure.account.auth.type", "Custom", "one of SharedKey, SAS, OAuth"),
        ("fs.azure.account.oauth.provider.type", "x.Mine", "one of ClientCredsTokenProvider, Msi"),
        ("fs.azure.account.oauth2.client.endpoint", "https://x.com", "/TENANT/oauth2/token"),
        ("fs.azure.account.keys", "k", r"is fs\.azure\.account\.key meant"),
        ("fs.azure.account.keys.a.dfs.core.windows.net", "k", r"is fs\.azure\.account\.key meant"),
        ("fs.azure.account.hns.enabled", "true", r"options of .*fs\.azure\.\.\., fs\.s3a\.\.\."),
        ("mode", "DROP", "one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ("view", "rows", "one of records, consumequeue, index, blocks, files"),
        ("splitBytes", "lots", "128m"),
        ("splitBytes", "0", "from 1"),
        ("verifyCrc", "yes", "true or false"),
        ("startTimestamp", "yesterday", "2026-11-20T12:00:00Z"),
        ("startOffset", "-4", "0 or more"),
        ("topics", ", ,", "separated by commas"),
        ("splitBytes", "\uff11\uff12k", "128m"),
        ("startOffset", "\uff11", "0 or more"),
        ("startTimestamp", "\uff11\uff12", "2026-11-20T12:00:00Z"),
        ("startTimestamp", "\uff12026-11-20", "2026-11-20T12:00:00Z"),
        ("columnNameOfCorruptRecord", " ", "a name that no other column has"),
        ("columnNameOfCorruptRecord", "Topic", "a name that no other column has"),
        ("startingOffsets", "banana", "='banana': expected earliest, latest, or JSON"),
        ("startingOffsets", "17", "earliest, latest, or JSON"),
        ("maxOffsetsPerTrigger", "7", "unknown option .* Kafka's source calls so is maxRowsPerT"),
        ("kafka.bootstrap.servers", "h:1", "Kafka's source calls so is endpoints here"),
        ("endingOffsetsByTimestamp", "7", "Kafka's source calls so is endTimestamp here"),
        ("maxRecordsPerPartition", "7", "Kafka's source calls so is minPartitions here"),
        ("subscribe", "T", "Kafka's source calls so is topics here"),
        ("pahts", "/x", r"unknown option pahts \(is path meant"),
    ],
)
def test_invalid_value_is_named(name: str, text: str, pattern: str) -> None:
    with pytest.raises(OptionError, match=pattern) as caught:
        Options.parse({name: text})
    assert name in str(caught.value)
    assert caught.value.exit_code == 64


@pytest.mark.parametrize("bound", ["Offset", "Timestamp"])
def test_a_range_that_ends_before_it_begins(bound: str) -> None:
    with pytest.raises(OptionError, match="is after"):
        Options.parse({f"start{bound}": "7", f"end{bound}": "6"})
    Options.parse({f"start{bound}": "7", f"end{bound}": "7"})


def test_a_batch_cannot_begin_at_the_end() -> None:
    options = {"endpoints": "h:1", "startingOffsets": "latest"}
    assert Options.parse(options, Use.STREAM).starting_offsets == "latest"
    with pytest.raises(OptionError, match="leaves a batch nothing to read"):
        Options.parse(options, Use.BATCH)
