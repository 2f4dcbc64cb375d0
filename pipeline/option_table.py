"""Options of the data source: one table of all of them, read and checked before anything happens.

Names are Spark's way: case-insensitive, units in the value (`128m`), the error modes of Spark's own
text sources. What is not in the table, or is of another use, is an error: an option that is
silently ignored reads the wrong rows.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rocketbed.pipeline.errors import Condition, PipelineError
from rocketbed.pipeline.option_values import (
    read_azure_provider,
    read_column,
    read_duration,
    read_ending,
    read_endpoint,
    read_flag,
    read_group,
    read_job,
    read_key,
    read_login,
    read_names,
    read_nameservers,
    read_number,
    read_offset,
    read_one_of,
    read_pattern,
    read_place,
    read_provider,
    read_signature,
    read_starting,
    read_text,
    read_word,
    time_in_ms,
)
from rocketbed.pipeline.schema import CORRUPT, VIEWS

MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
SYNC_MODES: Final = ("auto", "index", "walk", "scan")
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
RETRY_TIMEOUT_MS: Final = 30_000
RETRY_TIMEOUT_MS_MAX: Final = 86_400_000
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024 - 64 * 1024
"""A request's body has to stay below the broker's limit for one message, 4 MiB."""
_OF_SPARK: Final = frozenset({"checkpointlocation"})
"""Spark's own options, which it passes on to a stream's writer."""
_OF_TABLES: Final = frozenset({"provider", "owner"})
"""Options that Spark adds to those of a `CREATE TABLE`."""
NO_TABLES: Final = (
    "Spark hands the options of a table in its catalog to no source in Python, so it is"
    " unreadable: use CREATE TEMPORARY VIEW name USING rocketbed OPTIONS (...)"
)
"""Measured with PySpark 4.3: only the schema lookup gets the options, readers and writers do
not."""
NO_PUSHDOWN: Final = (
    "there is no option pushdown any more: Spark keeps one read of a DataFrame or view, so filters"
    " that were pushed down for one query left rows out of the next. Give topics, startTimestamp,"
    " endTimestamp, startOffset or endOffset, which plan no more than is asked for, to each read"
)
"""Measured with PySpark 4.3: a later query without filters, or the other half of a union, got the
reader that the first filters had narrowed."""


class OptionError(PipelineError):
    """An option is missing, unknown or cannot be understood."""

    condition = Condition.ILLEGAL_OPTION
    exit_code = 64


class Use(Enum):
    """Kind of read or write that an option is for."""

    BATCH = "batch reads"
    STREAM = "streams"
    WRITE = "batch writes"
    STREAM_WRITE = "stream writes"


READS: Final = (Use.BATCH, Use.STREAM)
WRITES: Final = (Use.WRITE, Use.STREAM_WRITE)


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table."""

    name: str
    read: Callable[[str], Any]
    """Reader of the value. Raises `ValueError` with the expected form."""
    default: str
    """Default as a text for people."""
    doc: str
    uses: tuple[Use, ...] = READS
    source: str = ""
    """Source of reads, `path` or `endpoints`, if the option is for one only."""
    views: tuple[str, ...] = tuple(VIEWS)
    """Views that the option is for, in reads."""

    @property
    def is_shown(self) -> bool:
        """True if its value may be shown in an error: it is not a secret."""
        return not self.name.endswith((".key", ".secret", ".token"))


BATCH, STREAM = (Use.BATCH,), (Use.STREAM,)
RECORDS: Final = ("records",)
QUEUES: Final = ("records", "consumequeue")
TIMES: Final = ("records", "index")
LOGS: Final = ("records", "blocks", "files")
TABLE: Final = (
    Option(
        "path", read_place, "",
        "a store's directory, or `broker/replica=directory,...`; more forms: see the guide",
    ),
    Option(
        "endpoints", read_nameservers, "",
        "name servers `host:port;host:port`: read through the client protocol, in place of `path`;"
        " where writers send",
        READS + WRITES,
    ),
    Option(
        "view", read_one_of(*VIEWS), "`records`",
        "the table to read: " + ", ".join(f"`{view}`" for view in VIEWS),
    ),
    Option("topics", read_names, "all", "comma-separated topic names", views=QUEUES),
    Option(
        "topicsPattern", read_pattern, "",
        "in place of `topics`: a regular expression (Python's) that whole names match",
        views=QUEUES,
    ),
    Option(
        "brokers", read_names, "all", "comma-separated broker names: only their queues are read",
        source="endpoints",
    ),
    Option(
        "clusters", read_names, "all",
        "comma-separated names of clusters: only queues of their brokers are read",
        source="endpoints",
    ),
    Option("startOffset", read_offset, "", "physical offset of the first record", BATCH),
    Option("endOffset", read_offset, "", "physical offset: records that begin before it", BATCH),
    Option("startTimestamp", time_in_ms, "", "store time, inclusive", views=TIMES),
    Option("endTimestamp", time_in_ms, "", "store time, exclusive", views=TIMES),
    Option(
        "stats", read_place, "",
        "where the job `stats` wrote what segments hold: those without the topics or times asked"
        " for are left out", BATCH, "path", RECORDS,
    ),
    Option(
        "splitBytes", read_number(1), "`128m`",
        "bytes of log per task; below 64 MiB the overhead of a task outweighs its work",
        source="path", views=(*QUEUES, "index", "blocks"),
    ),
    Option(
        "syncMode", read_one_of(*SYNC_MODES), "`auto`",
        "how a task inside a segment finds its first record: `index` (consume queues), `walk` (from"
        " the segment's start), `scan` (search for a record; a crafted body can mislead it);"
        " `auto`: `index` if there are queues, else `walk`",
        source="path", views=RECORDS,
    ),
    Option("batchRows", read_number(1), "4096", "rows per Arrow batch", views=RECORDS),
    Option(
        "blockBytes", read_number(1), "`1m`", "size of a block", source="path", views=("blocks",)
    ),
    Option(
        "mode", read_one_of(*MODES), "`PERMISSIVE`",
        "what becomes of bad ranges: " + ", ".join(f"`{mode}`" for mode in MODES), views=RECORDS,
    ),
    Option(
        "columnNameOfCorruptRecord", read_column, f"`{CORRUPT}`", "where a bad range is described",
        views=RECORDS,
    ),
    Option(
        "verifyCrc", read_flag, "`true`", "compare bodies with their stored checksum", views=RECORDS
    ),
    Option("decompress", read_flag, "`true`", "inflate bodies", views=RECORDS),
    Option(
        "inner", read_one_of("unpack", "keep"), "`unpack`",
        "records of batch queues hold several messages: `unpack` gives a row for each, `keep` one"
        " for the record, its body encoded (with `decompress` off a packed one stays so as well)",
        views=RECORDS,
    ),
    Option(
        "readUncommitted", read_flag, "`false`",
        "`true`: read up to the last record of the longest replica",
        views=LOGS,
    ),
    Option(
        "onlyCommitted", read_flag, "`false`",
        "of what exactly-once jobs wrote, only what is committed; all else as usual", BATCH,
        views=RECORDS,
    ),
    Option(
        "failOnDataLoss", read_flag, "`true`",
        "`false`: what retention deleted meanwhile becomes a row with the reason `missing_segment`;"
        " over `endpoints` a read goes on, with a warning, behind what is gone or what a broker"
        " does not give for damage",
    ),
    Option(
        "startingOffsets", read_starting, "`earliest`",
        "where a stream without a checkpoint, or a batch read over `endpoints`, starts: `earliest`,"
        " `latest` (a stream only), JSON",
    ),
    Option(
        "startingTimestamp", time_in_ms, "",
        "in place of it: what was stored then or later; a stream starts with the first such message"
        " of each queue or log, and a time to come is now", STREAM,
    ),
    Option(
        "endingOffsets", read_ending, "`latest`",
        "where a batch read over `endpoints` ends: `latest`, or JSON; then queues that it does not"
        " name are not read: with `{}` none", BATCH,
    ),
    Option(
        "maxBytesPerTrigger", read_number(1), "",
        "upper limit of a micro-batch, bytes of log of all brokers; it takes at least one record of"
        " each that has any; over `endpoints` only roughly, and of each queue", STREAM,
    ),
    Option(
        "maxRowsPerTrigger", read_number(1), "",
        "the same in records, of which one of several messages counts once; exceeded only where"
        " more brokers or queues than that have any; over `path` those of all topics count", STREAM,
    ),
    Option(
        "minOffsetsPerTrigger", read_number(1), "",
        "over `endpoints`: a micro-batch waits for so many new messages", STREAM, "endpoints",
    ),
    Option(
        "maxTriggerDelay", read_duration, "`15m`", "but no longer than this after the last one",
        STREAM, "endpoints",
    ),
    Option(
        "minPartitions", read_number(1), "1", "split a batch into at least this many tasks",
        views=RECORDS,
    ),
    Option(
        "retryTimeoutMs", read_number(1, RETRY_TIMEOUT_MS_MAX), f"{RETRY_TIMEOUT_MS}",
        "how long a broker or replica may be unavailable, or a message not taken, before the query"
        " fails", READS + WRITES,
    ),
    Option("topic", read_text, "", "where rows go when they have no column `topic`", WRITES),
    Option(
        "delivery", read_one_of(AT_LEAST_ONCE, EXACTLY_ONCE), "see right",
        f"`{AT_LEAST_ONCE}` (default of batch jobs) or `{EXACTLY_ONCE}` (default of streams)",
        WRITES,
    ),
    Option(
        "jobId", read_job, "a new one",
        "names a batch job: one that runs again with the same id, exactly once, writes nothing that"
        " is marked already; other topics than then are an error, another number of rows is a"
        " warning", (Use.WRITE,),
    ),
    Option("group", read_group, "`rocketbed_pipeline`", "the producer group", WRITES),
    Option(
        "maxBytesPerSecond", read_number(0, 1 << 40), "0",
        "of all tasks together, bytes of bodies; 0: no limit", WRITES,
    ),
    Option(
        "tasks", read_number(1, 1 << 20), "1", "how many tasks run at once, and share that rate",
        WRITES,
    ),
    Option(
        "requestBytes", read_number(0, REQUEST_BYTES_MAX), "`1m`",
        "messages are sent together, up to this many bytes; 0: one by one", WRITES,
    ),
    Option(
        "fs.s3a.endpoint", read_endpoint, "AWS's", "of the S3 server, `host:port` or a URL",
        source="path",
    ),
    Option("fs.s3a.endpoint.region", read_word, "the bucket's", "its region", source="path"),
    Option("fs.s3a.access.key", read_word, "AWS's own ways", "who asks", source="path"),
    Option("fs.s3a.secret.key", read_word, "AWS's own ways", "and the secret of it", source="path"),
    Option("fs.s3a.session.token", read_word, "", "of temporary credentials", source="path"),
    Option(
        "fs.s3a.aws.credentials.provider", read_provider, "AWS's own ways",
        "a list of those that Hadoop has, under any package:"
        " `AnonymousAWSCredentialsProvider`: no credentials; `SimpleAWSCredentialsProvider`,"
        " `TemporaryAWSCredentialsProvider`: with the keys above; others are AWS's own ways",
        source="path",
    ),
    Option(
        "fs.s3a.connection.ssl.enabled", read_one_of("true", "false"), "`true`",
        "`false`: plain HTTP", source="path",
    ),
    Option(
        "fs.s3a.path.style.access", read_one_of("true", "false"), "see right",
        "whether the bucket is in the path and not in the host's name; without it, it is where"
        " there is an endpoint", source="path",
    ),
    Option(
        "fs.azure.account.key", read_key, "Azure's own ways", "the key of the account",
        source="path",
    ),
    Option(
        "fs.azure.sas.fixed.token", read_signature, "Azure's own ways",
        "a shared access signature in its place", source="path",
    ),
    Option(
        "fs.azure.account.oauth2.client.id", read_word, "Azure's own ways",
        "or an application that asks,", source="path",
    ),
    Option(
        "fs.azure.account.oauth2.client.secret", read_word, "Azure's own ways",
        "the secret of it,", source="path",
    ),
    Option(
        "fs.azure.account.oauth2.client.endpoint", read_login, "Azure's own ways",
        "and where it is known: `https://login.microsoftonline.com/TENANT/oauth2/token`",
        source="path",
    ),
    Option(
        "fs.azure.account.auth.type", read_one_of("SharedKey", "SAS", "OAuth"),
        "what is given", "which of these counts", source="path",
    ),
    Option(
        "fs.azure.account.oauth.provider.type", read_azure_provider, "`ClientCredsTokenProvider`",
        "of OAuth: the application above, or `MsiTokenProvider`, `WorkloadIdentityTokenProvider`:"
        " Azure's own ways", source="path",
    ),
    Option(
        "fs.azure.endpoint", read_endpoint, "the account's",
        "in the account's place, for an emulator: `http://127.0.0.1:10000`", source="path",
    ),
)  # fmt: skip
FS: Final = tuple(one.name for one in TABLE if one.name.startswith("fs."))
"""Options of file systems, with the names of Hadoop's settings."""
Settings = tuple[tuple[str, str], ...]
"""Settings of file systems as (name, value)."""
_NEAR: Final = 0.65
"""Minimum similarity for a suggestion: `pahts` to `path` 0.67; `marker` to `brokers` 0.62."""
_NEAR_KNOWN: Final = 0.8
"""Minimum similarity for a correctly spelled option of another use: `onlyCommitted` to
`readUncommitted` 0.71, `startOffset` to `startingOffsets` 0.85."""
_BY_NAME: Final = {option.name.lower(): option for option in TABLE}
_S3A: Final = "fs.s3a."
_OF_S3A: Final = [re.escape(one.removeprefix(_S3A)) for one in FS if one.startswith(_S3A)]
_OF_BUCKET: Final = re.compile(rf"fs\.s3a\.bucket\.(.+)\.({'|'.join(_OF_S3A)})")
"""Pattern of an option for one bucket, in lower case."""
_OF_ACCOUNT: Final = re.compile(
    rf"({'|'.join(re.escape(one) for one in FS if 'azure' in one)})\.(.+\..+)"
)
"""Pattern of an option for one Azure account,
`fs.azure.account.key.ACCOUNT.dfs.core.windows.net`."""


def common_name(name: str) -> tuple[str, str]:
    """Split an option into its bucket or account, which may be empty, and its general name; in
    lower case."""
    name = name.lower()
    if match := _OF_BUCKET.fullmatch(name):
        return match[1], f"{_S3A}{match[2]}"
    if match := _OF_ACCOUNT.fullmatch(name):
        return one_host(match[2]), match[1]
    return "", name


def one_host(host: str) -> str:
    """Return the one form of the two host names of an Azure account, in lower case."""
    return host.lower().replace(".blob.", ".dfs.", 1)


def family(name: str) -> str:
    """Return the family of a file system's option, for lists: `fs.s3a...`."""
    return ".".join(name.split(".")[:2]) + "..."


def option_of(name: str) -> Option:
    """Return the row of an existing option."""
    return _BY_NAME[name.lower()]


def read_options(texts: Mapping[str, str], *uses: Use) -> dict[str, Any]:
    """Read the options for some uses; returns values by the name in the table. Raises `OptionError`
    with the option and its expected form."""
    values: dict[str, Any] = {}
    use_text = " or ".join(use.value for use in uses)
    if _OF_TABLES & {name.lower() for name in texts}:
        raise OptionError(NO_TABLES)
    if "pushdown" in map(str.lower, texts):
        raise OptionError(NO_PUSHDOWN, Condition.UNKNOWN_OPTION)
    for name, text in texts.items():
        bucket, common = common_name(name)
        option = _BY_NAME.get(common)
        if name.lower() == "paths" and Use.BATCH in uses:
            values["path"] = ",".join(_paths(text))
        elif option is not None and set(option.uses) & set(uses):
            try:
                values[name.lower() if bucket else option.name] = option.read(str(text))
            except ValueError as exc:
                full_name = name if bucket else option.name
                is_shown = option.is_shown and "@" not in str(text)  # a user's password
                option_text = f"{full_name}={text!r}" if is_shown else full_name
                raise OptionError(f"option {option_text}: expected {exc}") from None
        elif name.lower() not in (_OF_SPARK if Use.STREAM_WRITE in uses else ()):
            valid = [one for one in TABLE if set(one.uses) & set(uses)]
            problem = _problem(name, option, use_text) + _nearest(name, valid)
            if problem == _problem(name, None, use_text):
                names = {one.name if one.name not in FS else family(one.name) for one in valid}
                problem += f"; options of {use_text}: {', '.join(sorted(names))}"
            raise OptionError(problem, Condition.UNKNOWN_OPTION)
    if set(uses) <= set(READS):
        _check_source(values)
    return values


def _check_source(values: Mapping[str, Any]) -> None:
    """Refuse options that are not for the source or the view of the read."""
    source = "endpoints" if values.get("endpoints") else "path"
    view = values.get("view", "records")
    for name in values:
        option = _BY_NAME[common_name(name)[1]]
        if option.source not in ("", source):
            raise OptionError(f"option {name} is for {option.source}, not for a read over {source}")
        if view not in option.views:
            raise OptionError(f"view={view} does not support option {name}{_views(option)}")


def _views(option: Option) -> str:
    """Describe the views that an option is for; empty if for all."""
    if option.views == tuple(VIEWS):
        return ""
    return f"; it is for view={' or '.join(option.views)}"


def _paths(text: str) -> list[str]:
    """Parse the list that Spark makes of `load(["a", "b"])`."""
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
        raise OptionError(f"option paths={text!r}: expected a JSON list of paths, or give path")
    return paths


def _problem(name: str, option: Option | None, use_text: str) -> str:
    if option is None:
        return f"unknown option {name}"
    return f"option {option.name} is for {_uses(option)}, not {use_text}"


OF_KAFKA: Final = {
    "kafka.bootstrap.servers": ("endpoints",),
    "subscribe": ("topics",),
    "subscribepattern": ("topicsPattern",),
    "maxoffsetspertrigger": ("maxRowsPerTrigger",),
    "startingoffsetsbytimestamp": ("startingTimestamp", "startTimestamp"),
    "endingoffsetsbytimestamp": ("endTimestamp",),
    "endingtimestamp": ("endTimestamp",),
    "maxrecordsperpartition": ("minPartitions", "splitBytes"),
}
"""Options of Spark's source for Kafka, in lower case, with ours (docs/guides/spark.md): the first
valid one is suggested."""


def _nearest(name: str, valid: Sequence[Option]) -> str:
    """Suggest an option for a wrong name; empty if none is near. An option of another use is
    suggested only if no valid one is near."""
    for ours in OF_KAFKA.get(name.lower(), ()):
        if ours in {option.name for option in valid}:
            return f" (what Kafka's source calls so is {ours} here)"
    is_known = name.lower() in _BY_NAME
    start, name_end = _parts(name)
    for among in (valid, () if is_known else TABLE):
        ends = {
            end: option
            for option in among
            for begin, end in [_parts(option.name)]
            if begin == start
        }
        near = _NEAR_KNOWN if is_known else _NEAR
        for match in difflib.get_close_matches(name_end, ends, 1, near):
            option = ends[match]
            use = "" if option in valid else f" It is for {_uses(option)}"
            return f" (is {option.name} meant?{use})"
    return ""


def _parts(name: str) -> tuple[str, str]:
    """Split a name into its family's prefix and the rest, without an account; in lower case."""
    match = re.fullmatch(r"(fs\.[a-z0-9]+\.)(.+?)(\.[a-z0-9]+\.(dfs|blob)\..+)?", name.lower())
    return (match[1], match[2]) if match else ("", name.lower())


def _uses(option: Option) -> str:
    return " and ".join(use.value for use in option.uses)


def markdown(*uses: Use) -> str:
    """Return the rows of a table for documents: name, default, meaning, and the uses if not all of
    `uses`."""
    lines = []
    for option in TABLE:
        common = [use for use in uses if use in option.uses]
        if common:
            only = [] if len(common) == len(uses) else [f"{common[0].value} only"]
            if len(option.views) < len(VIEWS):
                views = ", ".join(f"`{view}`" for view in option.views)
                only.append(f"view{'s' if len(option.views) > 1 else ''} {views} only")
            note = f" ({'; '.join(only)})" if only else ""
            lines.append(f"| `{option.name}` | {option.default} | {option.doc}{note} |")
    return "\n".join(lines)
