"""`rocketbed cluster`: a local cluster in one command, as real processes on 127.0.0.1.

It lives below one directory: `cluster.json`, and for each member its settings, log, pid and store.
`up` on a directory that has a cluster starts what does not run; `down` stops it and keeps the data.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import trio

from rocketbed.cli.client import json_option, run, show, show_json, table
from rocketbed.cli.cluster.watch import watch

if TYPE_CHECKING:
    from rocketbed.chaos.cluster.cluster import LocalCluster
    from rocketbed.chaos.cluster.status import MemberStatus

DEFAULT_DIRECTORY: Final = "rocketbed-cluster"
DEFAULT_PORT: Final = 9876
EXIT_NOT_SERVING: Final = 1

_directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Where the cluster lives.",
)


@click.group("cluster")
def cluster() -> None:
    """Run a local cluster: nameserver, master, slaves."""


cluster.add_command(watch)


@cluster.command("up")
@_directory_option
@click.option("--slaves", type=click.IntRange(0, 16), default=2, show_default=True)
@click.option(
    "--sync/--async",
    "sync",
    default=True,
    help="Whether a message is acknowledged only once a slave has it (default: yes).",
)
@click.option("--flush", type=click.Choice(["sync", "async"]), default="async", show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, 64_000),
    default=DEFAULT_PORT,
    show_default=True,
    help="The nameserver's port, the nodes' follow from it; 0 takes free ones.",
)
@click.option("--docker", is_flag=True, help="In containers; builds their image if need be.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of every node by RocketMQ's name; repeatable.",
)
def up(
    directory: Path,
    slaves: int,
    sync: bool,
    flush: Literal["sync", "async"],
    port: int,
    docker: bool,
    overrides: tuple[str, ...],
) -> int:
    """Start a cluster and wait until it serves.

    With --docker its members are containers on a network of their own, its directory is bound into
    them, and --port leads to the nameserver.
    """
    from rocketbed.chaos.cluster.claim import claimed
    from rocketbed.chaos.cluster.cluster import LocalCluster

    with claimed(directory, make=True):
        found = _known(directory, docker)
        if found is None:
            create: Callable[..., LocalCluster] = LocalCluster.create
            if docker:
                from rocketbed.chaos.cluster.docker.cluster import DockerCluster

                create = DockerCluster.create_in_docker
            settings = dict(_setting(item) for item in overrides)
            found = create(
                directory, slaves=slaves, sync=sync, flush=flush, port=port, settings=settings
            )
        if all(found.pid(name) is not None for name in found.names):
            click.echo("every member runs already", err=True)
        found.prepare()
        show(_status_lines(run(lambda: _start(found))))
        click.echo(f"clients: -n {found.nameserver_address}")
    return 0


def _known(directory: Path, docker: bool) -> LocalCluster | None:
    """The cluster that a directory has."""
    from rocketbed.chaos.cluster.cluster import LocalCluster
    from rocketbed.chaos.cluster.plan import FILE, ClusterError

    if not (directory / FILE).exists():
        return None
    click.echo(f"{directory} has a cluster already: it goes on with its own options", err=True)
    found = LocalCluster.load(directory)
    if docker and not found.plan.subnet:
        raise ClusterError(
            f"the cluster of {directory} is one of processes: take another --dir for one in "
            "containers, or delete it (cluster down --remove)"
        )
    return found


async def _start(found: LocalCluster) -> list[MemberStatus]:
    missing = [name for name in found.names if found.pid(name) is None]
    if missing:
        try:
            await found.start(*missing)
        except BaseException:
            with trio.CancelScope(shield=True):
                await found.give_up(missing)
            raise
    return await found.status()


@cluster.command("down")
@_directory_option
@click.option("--remove", is_flag=True, help="Delete the members' directories, data and all.")
def down(directory: Path, remove: bool) -> int:
    """Stop a cluster; its data stays."""
    from rocketbed.chaos.cluster.claim import claimed
    from rocketbed.chaos.cluster.cluster import LocalCluster

    with claimed(directory):
        _down(LocalCluster.load(directory), remove)
    if remove:
        click.echo(f"{directory} is removed")
    return 0


def _down(found: LocalCluster, remove: bool) -> None:
    from rocketbed.chaos.cluster.plan import FILE

    running = [name for name in found.names if found.pid(name) is not None]
    killed = run(found.close)
    for name in running:
        click.echo(f"{name} {'had to be killed' if name in killed else 'stopped'}")
    if not running:
        click.echo("no member was running")
    if remove:
        for name in found.names:
            shutil.rmtree(found.member_directory(name), ignore_errors=True)
        (found.directory / FILE).unlink(missing_ok=True)
        if not any(found.directory.iterdir()):
            found.directory.rmdir()


@cluster.command("status")
@_directory_option
@json_option
def status(directory: Path, as_json: bool) -> int:
    """Show members, roles and offsets; ends with 1 unless every member serves."""
    from rocketbed.chaos.cluster.cluster import LocalCluster

    found = LocalCluster.load(directory)
    rows = run(found.status)
    if as_json:
        show_json([_status_row(row) for row in rows])
    else:
        show(_status_lines(rows))
    return 0 if all(row.is_serving for row in rows) else EXIT_NOT_SERVING


@cluster.command("promote")
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if another slave has more of the log.")
@_directory_option
def promote(name: str, force: bool, directory: Path) -> int:
    """Make a slave the master; the former master becomes its slave.

    The former master is stopped first. What it had and the new master has not is cut from its log
    and kept in its store's rocketbed.cut. A slave that has less than another one is refused, since
    what it lacks may have been acknowledged.
    """
    from rocketbed.chaos.cluster.claim import claimed
    from rocketbed.chaos.cluster.cluster import LocalCluster

    with claimed(directory):
        found = LocalCluster.load(directory)
        former = found.plan.master.name

        async def change() -> list[MemberStatus]:
            await found.promote(name, force=force)
            return await found.status()

        rows = run(change)
    click.echo(f"{name} is the master now, {former} its slave")
    show(_status_lines(rows))
    return 0


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set {text}: KEY=VALUE is needed")
    return key.strip(), value.strip()


def _state(row: MemberStatus) -> str:
    if row.pid is None:
        return "down"
    return "serving" if row.is_serving else "not serving"


def _status_row(row: MemberStatus) -> dict[str, Any]:
    return {
        "name": row.member.name,
        "role": row.role,
        "brokerId": row.member.broker_id if row.member.is_node else None,
        "address": row.member.address,
        "pid": row.pid,
        "state": _state(row),
        "minOffset": row.offset("commitLogMinOffset"),
        "maxOffset": row.offset("commitLogMaxOffset"),
        "messages": row.offset("putMessageTimesTotal"),
    }


def _status_lines(rows: list[MemberStatus]) -> list[str]:
    shown: list[tuple[str, ...]] = [
        ("member", "role", "id", "address", "pid", "state", "log from", "to")
    ]
    for row in rows:
        offsets = (row.offset("commitLogMinOffset"), row.offset("commitLogMaxOffset"))
        shown.append(
            (
                row.member.name,
                row.role,
                str(row.member.broker_id) if row.member.is_node else "-",
                row.member.address,
                str(row.pid or "-"),
                _state(row),
                *("-" if offset is None else str(offset) for offset in offsets),
            )
        )
    return table(shown)
