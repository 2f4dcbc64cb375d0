"""`rocketbed store`: inspect store directories (RocketMQ's too), rebuild derived files, heal logs.

Commands other than `rebuild` and `heal` only read, and may run beside a live broker. `fsck` exits
with 0 when all is good, 1 for a torn tail only, 2 for damage, 3 when the directory is not a store;
the others with 0 or 3. The work is done by `rocketbed.inspect`, and for `heal` by the node's store;
this module has only options and output.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rocketbed.cli.client import Moment, body_text, time_text
from rocketbed.cli.main import CommandGroup

if TYPE_CHECKING:
    from rocketbed.inspect import RebuildReport, StoreDirectory

EXIT_SKIPPED = 2
EXIT_NOT_A_STORE = 3
EXIT_USAGE = 64


Command = Callable[..., None]


def _store_options(command: Command) -> Command:
    """Add the directory and the options for reading it."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting by RocketMQ's name, e.g. mappedFileSizeCommitLog; repeatable.",
        ),
        click.option(
            "--config",
            "config",
            type=click.Path(exists=True, dir_okay=False),
            help="The broker's broker.conf, for settings that cannot be derived from the files.",
        ),
        click.argument("directory", metavar="DIR", type=click.Path()),
    ):
        command = decorate(command)
    return command


@click.group("store", cls=CommandGroup, help="Inspect, check, rebuild and heal store directories.")
def store() -> None:
    """Group of all store commands."""


@store.command("ls")
@_store_options
def list_command(
    directory: str, config: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """List files, offsets and queues."""
    from rocketbed.inspect.listing import describe, table

    opened = _open(directory, config, overrides)
    row = describe(opened)
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
    else:
        _print(table(row))


@store.command("dump")
@_store_options
@click.option("--topic", help="Only this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue id.")
@click.option("--offset", type=click.IntRange(min=0), help="Start at this queue offset.")
@click.option("--key", help="Only messages with this key or unique id.")
@click.option("--begin", "begin_ms", type=Moment(), help="Stored at or after this time.")
@click.option("--end", "end_ms", type=Moment(), help="Stored at or before this time.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Show at most this many messages; 0 for all.",
)
@click.option("--body", is_flag=True, help="Print the bodies too.")
@click.option(
    "--scan", is_flag=True, help="Scan the commit log instead of trusting consume queues and index."
)
def dump_command(
    directory: str,
    config: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    limit: int,
    body: bool,
    **conditions: Any,
) -> None:
    """Print stored messages, filtered by topic, queue, offset, key or time."""
    from rocketbed.inspect import Filter, messages

    opened = _open(directory, config, overrides)
    selected = messages(opened, Filter(**conditions))
    missing: dict[str, None] = {}
    rows = (
        message.as_row(lambda reason: missing.update({str(reason): None}), with_body=body)
        for message in (islice(selected, limit) if limit else selected)
    )
    _print(
        (json.dumps(row, ensure_ascii=False) for row in rows)
        if as_json
        else _message_table(rows, with_body=body)
    )
    for reason in missing:
        click.echo(reason, err=True)


@store.command("fsck")
@_store_options
def fsck_command(
    directory: str, config: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Check every rule of the format: what is lost, what to do, and why.

    Exits with 0 healthy, 1 healthy after an unclean stop, 2 damaged, 3 not a store.
    """
    from rocketbed.cli.fsck import report_lines
    from rocketbed.inspect import check_store

    opened = _open(directory, config, overrides)
    try:
        report = check_store(opened, _progress())
    except OSError as error:
        _stop(f"cannot read {directory}: {error}", 2)
    if as_json:
        click.echo(json.dumps(report.as_row(), ensure_ascii=False))
    else:
        _print(report_lines(report, _as_words(directory, config, overrides)))
    sys.exit(int(report.worst))


@store.command("rebuild")
@_store_options
@click.option(
    "--out", type=click.Path(), help="Write consume queues and index below this directory."
)
@click.option("--in-place", is_flag=True, help="Replace them in the store, holding its lock.")
@click.option(
    "--force", is_flag=True, help="With --in-place: rebuild even if the commit log is damaged."
)
def rebuild_command(
    directory: str,
    config: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    out: str | None,
    in_place: bool,
    force: bool,
) -> None:
    """Rebuild consume queues and index from the commit log.

    Exits with 1 when nothing was written, 2 when parts of the log were skipped without --force.
    """
    from rocketbed.inspect import rebuild, rebuild_in_place
    from rocketbed.inspect.rebuild import RebuildRefused

    if (out is None) == (not in_place):
        _stop("give exactly one of --out DIR and --in-place", EXIT_USAGE)
    opened = _open(directory, config, overrides)
    try:
        if out is not None:
            report = rebuild(opened, out, _progress())
        else:
            report = rebuild_in_place(opened, force=force, progress=_progress())
    except RebuildRefused as error:
        _stop(str(error), 1)
    if as_json:
        click.echo(json.dumps(report.as_row(), ensure_ascii=False))
    else:
        _print(_rebuild_lines(report))
    if (report.holes or report.refused or report.begun_anew) and not force:
        sys.exit(EXIT_SKIPPED)


def _rebuild_lines(report: RebuildReport) -> Iterator[str]:
    yield (
        f"{report.records} records: {report.units} entries in {report.queues} queues,"
        f" {report.index_entries} keys in {report.index_files} index files"
    )
    for hole in report.holes:
        yield (f"damage in the commit log, its messages are not in any queue: {hole}")
    for topic, count in sorted(report.left_out.items()):
        yield (f"skipped, topic deleted: {count} records of {topic}")
    for refused in report.refused:
        yield (f"not added to its queue: {refused}")
    for queue, offset in report.begun_anew.items():
        topic = queue.rpartition("/")[0]
        yield (
            f"the queue offsets of {queue} begin at 0 again at {offset}. If {topic} was deleted and"
            f" made again there, start the node with --set rbTopicDeleted={topic}:{offset}, which"
            " builds its queues without what is below; else the records above are in no queue"
        )
    for corrected in report.corrected:
        yield (f"added at its place: {corrected}")


@store.command("heal")
@_store_options
@click.option(
    "--from",
    "source",
    required=True,
    metavar="HOST:PORT",
    help="A replica's replication port (haListenPort, by default listenPort + 1); RocketMQ's too.",
)
def heal_command(
    directory: str,
    config: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    source: str,
) -> None:
    """Copy the missing parts of a stopped node's commit log from a replica.

    Fills ranges without a readable record below the last offset that the node knew to be on disk.
    They are fetched into rocketbed.tmp and compared with the log around them first; if they do not
    fit, nothing changes. The replaced bytes are kept in rocketbed.cut. The segment size is the
    directory's own, unless it is given. Exits with 0 when the log is whole.
    """
    from pathlib import Path

    import trio

    from rocketbed.cli.servers import read_config
    from rocketbed.node.config.node_config import (
        make_config,
        settings_from_options,
        settings_from_text,
    )
    from rocketbed.node.store.heal import heal
    from rocketbed.remoting.client import parse_address
    from rocketbed.replication.fetch import fetch
    from rocketbed.wire.errors import RocketbedError
    from rocketbed.world.real import real_world

    try:
        settings = []
        if config is not None:
            settings += settings_from_text(read_config(Path(config)), config)
        settings += settings_from_options((*overrides, f"storePathRootDir={directory}"))
        node_config, _ = make_config(settings, memory_bytes=0)
        address = parse_address(source)
    except (RocketbedError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc
    if not os.path.isdir(node_config.store.log_dir):
        _stop(f"not a store: there is no {node_config.store.log_dir}", EXIT_NOT_A_STORE)
    try:
        world = real_world("heal")
        holes = trio.run(heal, world, node_config.store, partial(fetch, world, address))
    except (RocketbedError, OSError) as exc:
        _stop(f"not healed: {exc}", 1)
    if as_json:
        click.echo(json.dumps([asdict(hole) for hole in holes]))
        return
    for hole in holes:
        note = f"; what stood there is kept in {hole.kept}" if hole.kept else ""
        click.echo(f"healed {hole.end - hole.start} bytes from offset {hole.start}{note}")
    if holes:
        click.echo(f"the log is whole; {len(holes)} ranges were copied from {source}")
    else:
        click.echo(f"the log is whole: nothing was asked of {source}")


def _open(directory: str, config: str | None, overrides: tuple[str, ...]) -> StoreDirectory:
    """Open a directory with settings from a file and from the command line."""
    from rocketbed.inspect import NotAStore, Settings, SettingsError, open_directory
    from rocketbed.inspect.config import read_properties

    properties: dict[str, str] = {}
    if config is not None:
        with open(config, encoding="utf-8-sig", errors="replace") as file:
            properties.update(read_properties(file.read()))
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals or not name.strip():
            _stop(f"--set {override}: expected KEY=VALUE", EXIT_USAGE)
        properties[name.strip()] = value.strip()
    try:
        return open_directory(directory, Settings.from_properties(properties))
    except SettingsError as error:
        _stop(str(error), EXIT_USAGE)
    except NotAStore as error:
        _stop(f"not a store: {error}", EXIT_NOT_A_STORE)


def _as_words(directory: str, config: str | None, overrides: tuple[str, ...]) -> str:
    """Return the directory and the options for reading it, to repeat them in a command."""
    words = [directory, *(["--config", config] if config else [])]
    for override in overrides:
        words += ["--set", override]
    return shlex.join(words)


def _stop(message: str, status: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(status)


def _print(lines: Iterable[str]) -> None:
    """Print lines; a reader that closes the output (`| head`) ends the command quietly."""
    try:
        for line in lines:
            click.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _progress() -> Callable[[int, int], None] | None:
    """Return a function that shows the progress of a long read, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        click.echo(f"\r{percent:3d} % of {total >> 20} MiB", nl=False, err=True)

    return show


def _message_table(rows: Iterable[dict[str, Any]], *, with_body: bool) -> Iterator[str]:
    """Yield a line for each message; the table grows with its rows, so columns have fixed
    widths."""
    head = f"{'offset':>12} {'size':>8} {'queue offset':>12}  {'stored':<29}"
    yield f"{head}  topic/queue  tags  keys  id" + ("  body" if with_body else "")
    for row in rows:
        stored = time_text(row["storeTimestamp"])
        properties = row["properties"]
        yield (
            f"{row['commitLogOffset']:>12} {row['storeSize']:>8} {row['queueOffset']:>12}"
            f"  {stored:<29}  {row['topic']}/{row['queueId']}"
            f"  {properties.get('TAGS', '-')}  {properties.get('KEYS', '-')}  {row['msgId']}"
            + (f"  {_body_in(row)}" if with_body else "")
        )


def _body_in(row: dict[str, Any]) -> str:
    """Return the whole body of a row, as text or in hex; `-` if it could not be unpacked."""
    if row["bodyLength"] is None:
        return "-"
    packed = row.get("bodyBase64")
    body = row["body"].encode() if packed is None else base64.b64decode(packed)
    return body_text(body, shown=sys.maxsize)
