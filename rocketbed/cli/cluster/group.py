"""`rocketbed cluster`: a local cluster in one command, as real processes on 127.0.0.1.

It is stored in one directory: `cluster.json`, and for each member its settings, log, pid and store.
`up` in a directory that has a cluster starts the members that do not run; `down` stops it and keeps
the data.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from rocketbed.cli.client import json_option, run, show, show_json
from rocketbed.cli.cluster.display import status_json, status_lines
from rocketbed.cli.cluster.watch import watch
from rocketbed.cli.main import CommandGroup

if TYPE_CHECKING:
    from rocketbed.cli.client import Groups
    from rocketbed.cluster.status import MemberStatus

DEFAULT_DIRECTORY: Final = "rocketbed-cluster"
DEFAULT_PORT: Final = 9876
EXIT_NOT_SERVING: Final = 1
WATCH_S: Final = 1.0

_directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Directory of the cluster.",
)


@click.group("cluster", cls=CommandGroup)
def cluster() -> None:
    """Run a local cluster: nameserver, master, slaves."""


cluster.add_command(watch)


@cluster.command("up")
@_directory_option
@click.option("--slaves", type=click.IntRange(0, 16), default=2, show_default=True)
@click.option(
    "--groups",
    type=click.IntRange(1, 7),
    default=1,
    show_default=True,
    help="Number of masters with their slaves, or of groups with failover.",
)
@click.option(
    "--sync/--async",
    "sync",
    default=True,
    help="--sync: acknowledge a message only after a slave received it (default: --sync).",
)
@click.option(
    "--failover/--classic",
    "failover",
    default=None,
    help="--failover: if the leading node dies, another one takes over automatically; --classic: a"
    " master and its slaves (default: --failover with two slaves or more, not with --async).",
)
@click.option("--flush", type=click.Choice(["sync", "async"]), default="async", show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, 64_000),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the nameserver; brokers use ports derived from it. 0: free ports"
    " (those of the variable `ROCKETBED_PORTS=20000-21999` where it is set).",
)
@click.option("--docker", is_flag=True, help="Run in containers; builds the image if necessary.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting for every broker, by RocketMQ's name; repeatable.",
)
def up(
    directory: Path,
    slaves: int,
    groups: int,
    sync: bool,
    failover: bool | None,
    flush: Literal["sync", "async"],
    port: int,
    docker: bool,
    overrides: tuple[str, ...],
) -> int:
    """Start a cluster and wait until it serves.

    With --failover its nodes are node-1, node-2, ... (--slaves and one more), and the nameserver
    runs the controller that elects the leader.

    With --groups 2 there are two brokers, broker-a of a-node-1, a-node-2, ... and broker-b of
    b-node-1, ...: clients send to both, and to the other one while the leader of one is replaced.

    With --docker its members are containers on their own network, with the cluster directory bind
    mounted; --port is published for the nameserver.
    """
    from rocketbed.cluster.lifecycle import claimed, create, load_existing, missing, start_missing
    from rocketbed.cluster.plan import ClusterError

    def say(line: str) -> None:
        click.echo(line, err=True)

    if failover is None:
        failover = sync and slaves >= 2
    if failover and not sync:
        raise click.UsageError("--async: with --failover what is acknowledged is on other nodes")
    with claimed(directory, make=True):
        local = load_existing(directory, docker=docker, say=say)
        is_new = local is None
        if local is None:
            settings = dict(_setting(item) for item in overrides)
            local = create(
                directory,
                docker=docker,
                slaves=slaves,
                sync=sync,
                flush=flush,
                port=port,
                settings=settings,
                failover=failover,
                groups=groups,
            )
        if not missing(local):
            say("every member is already running")
        local.prepare()
        try:
            rows = run(lambda: start_missing(local))
        except (KeyboardInterrupt, click.Abort):
            say(
                "interrupted; what has started runs on: `rocketbed cluster down --dir"
                f" {shlex.quote(str(directory))}` stops it"
            )
            raise
        except ClusterError as exc:
            if not is_new:
                raise
            raise ClusterError(
                f"{exc}\n{directory} keeps these options: `rocketbed cluster down --remove --dir"
                f" {shlex.quote(str(directory))}` ends what runs and deletes it, so that others can"
                " be tried"
            ) from exc
        show(status_lines(rows))
        click.echo(f"clients: -n {local.nameserver_address}")
    return 0


@cluster.command("down")
@_directory_option
@click.option(
    "--remove", is_flag=True, help="Also delete the members' directories, including their data."
)
def down(directory: Path, remove: bool) -> int:
    """Stop a cluster; its data is kept."""
    from rocketbed.cluster.lifecycle import claimed, load, remove_files

    with claimed(directory):
        local = load(directory)
        running = [name for name in local.names if local.pid(name) is not None]
        killed = run(local.close)
        for name in running:
            click.echo(f"{name} {'killed (did not stop in time)' if name in killed else 'stopped'}")
        if not running:
            click.echo("no member was running")
        if remove:
            remove_files(local)
    if remove:
        click.echo(f"{directory} removed")
    return 0


@cluster.command("status")
@_directory_option
@json_option
@click.option("--watch", "again", is_flag=True, help="Show it again every second.")
def status(directory: Path, as_json: bool, again: bool) -> int:
    """Show members, roles and offsets, and remarks about the nodes.

    Remarks are: why clients cannot use a node, trouble, damage that its scrub has found or
    repaired, truncations that an operator ordered, and bytes that were truncated and are kept in
    rocketbed.cut.

    For a cluster with failover it also shows epoch, leader, the in-sync set, and the confirmed end
    of each node's log; and the epochs since which messages may be lost because an operator forced a
    leader.

    Exits with 1 unless every member serves, and if the state of a group with failover is unknown,
    the group has no leader, or a member is not ready. With several groups each has lines of its
    own.
    """
    from rocketbed.cluster.lifecycle import load
    from rocketbed.wire.errors import RocketbedError

    local = load(directory)

    async def look() -> tuple[list[MemberStatus], Groups]:
        rows = await local.status()
        groups: Groups = {}
        for broker in local.plan.brokers:
            try:
                group = await local.group(broker)
            except RocketbedError as exc:
                groups[broker] = str(exc)
            else:
                groups |= {} if group is None else {broker: group}
        return rows, groups

    while True:
        rows, groups = run(look)
        if as_json:
            show_json(status_json(rows, groups))
        else:
            show(status_lines(rows, groups))
        if not again:
            is_well = all(row.is_serving for row in rows)
            for group in groups.values():
                is_well &= not isinstance(group, str) and group.leader is not None
            if groups:  # a member that is not ready is of no use to its group
                is_well &= not any(row.not_ready for row in rows)
            return 0 if is_well else EXIT_NOT_SERVING
        time.sleep(WATCH_S)
        click.echo()


@cluster.command("handover")
@click.argument("name", required=False)
@_directory_option
def handover(name: str | None, directory: Path) -> int:
    """Hand the lead of a cluster with failover to another node: NAME, or the first that is in sync.

    The leader stops accepting messages, waits until the other node has all of them, and hands over.
    No message is lost, and producers wait only for a moment. With several groups NAME selects the
    group: it may also be a broker's name.
    """
    from rocketbed.cluster.lifecycle import load

    local = load(directory)
    group = run(lambda: local.hand_over(name))
    show(group.lines())
    return 0


@cluster.command("force-leader")
@click.argument("name")
@click.option(
    "--accept-loss",
    is_flag=True,
    required=True,
    help="Accept that acknowledged messages may be lost.",
)
@_directory_option
def force_leader(name: str, accept_loss: bool, directory: Path) -> int:
    """Make NAME the leader of a cluster with failover although it may lack acknowledged messages.

    For use when no node that is in sync will come back. Other nodes truncate what they have beyond
    its log, and from then on `cluster status` shows the epoch since which messages may be lost.
    """
    from rocketbed.cluster.lifecycle import load

    local = load(directory)
    group = run(lambda: local.force_leader(name))
    show(group.lines())
    return 0


@cluster.command("promote")
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Promote even if another node has more of the log, or may have."
)
@_directory_option
def promote(name: str, force: bool, directory: Path) -> int:
    """Make a slave the master; the former master becomes its slave.

    The former master is stopped first. The tail of its log that the new master lacks is truncated;
    a copy is kept in rocketbed.cut in its store. A slave is refused if it does not answer, if its
    log is behind another node's or has diverged from it, since the missing messages may have been
    acknowledged. The only exception is a former master that does not answer and acknowledges
    nothing without a slave: it may have more.
    """
    from rocketbed.cluster.lifecycle import claimed, load
    from rocketbed.cluster.promotion import lacking_copies

    with claimed(directory):
        local = load(directory)
        former = local.plan.master(local.plan.member(name).broker).name

        async def change() -> list[MemberStatus]:
            await local.promote(name, force=force)
            return await local.status()

        rows = run(change)
    click.echo(f"{name} is now the master, {former} is its slave")
    show(status_lines(rows))
    if problem := lacking_copies(local, name):
        click.echo(problem, err=True)
    return 0


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set {text}: expected KEY=VALUE")
    return key.strip(), value.strip()
