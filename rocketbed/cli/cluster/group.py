"""`rocketbed cluster`: a local cluster in one command, as real processes on 127.0.0.1.

It lives below one directory: `cluster.json`, and for each member its settings, log, pid and store.
`up` on a directory that has a cluster starts what does not run; `down` stops it and keeps the data.
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

if TYPE_CHECKING:
    from rocketbed.cli.cluster.display import Groups
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


@click.group("cluster")
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
    help="So many masters with their slaves, or groups with failover, in one cluster.",
)
@click.option(
    "--sync/--async",
    "sync",
    default=True,
    help="--sync: acknowledge a message only once a slave has it (default: --sync).",
)
@click.option(
    "--failover/--classic",
    "failover",
    default=None,
    help="--failover: one node leads, and if it dies, another one, by itself; --classic: a master"
    " and its slaves (default: --failover with two slaves or more, not with --async).",
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

    With --failover there are node-1, node-2, ... (--slaves and one more), and the nameserver runs
    the controller that says who leads.

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
        found = load_existing(directory, docker=docker, say=say)
        is_new = found is None
        if found is None:
            settings = dict(_setting(item) for item in overrides)
            found = create(
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
        if not missing(found):
            say("every member is already running")
        found.prepare()
        try:
            rows = run(lambda: start_missing(found))
        except ClusterError as exc:
            if not is_new:
                raise
            raise ClusterError(
                f"{exc}\n{directory} keeps these options: `rocketbed cluster down --remove --dir"
                f" {shlex.quote(str(directory))}` ends what runs and deletes it, so that others can"
                " be tried"
            ) from exc
        show(status_lines(rows))
        click.echo(f"clients: -n {found.nameserver_address}")
    return 0


@cluster.command("down")
@_directory_option
@click.option(
    "--remove", is_flag=True, help="Also delete the members' directories, including their data."
)
def down(directory: Path, remove: bool) -> int:
    """Stop a cluster; its data is kept."""
    from rocketbed.cluster.cluster import LocalCluster
    from rocketbed.cluster.lifecycle import claimed, remove_files

    with claimed(directory):
        found = LocalCluster.load(directory)
        running = [name for name in found.names if found.pid(name) is not None]
        killed = run(found.close)
        for name in running:
            click.echo(f"{name} {'killed (did not stop in time)' if name in killed else 'stopped'}")
        if not running:
            click.echo("no member was running")
        if remove:
            remove_files(found)
    if remove:
        click.echo(f"{directory} removed")
    return 0


@cluster.command("status")
@_directory_option
@json_option
@click.option("--watch", "again", is_flag=True, help="Show it again every second.")
def status(directory: Path, as_json: bool, again: bool) -> int:
    """Show members, roles and offsets, and what a node has to tell of itself.

    Of a cluster with failover also epoch, leader, who is in sync, and how far each node's log is
    confirmed; and since which epochs messages may be lost since an operator forced a leader.

    That is why clients cannot use it, trouble, damage that its scrub has found or mended, cuts that
    an operator ordered, and what was cut off and is kept in rocketbed.cut.
    Exits with 1 unless every member serves, and if the state of a group with failover is unknown,
    nobody leads it, or a member is not ready. With several groups each has lines of its own.
    """
    from rocketbed.cluster.cluster import LocalCluster
    from rocketbed.wire.errors import RocketbedError

    found = LocalCluster.load(directory)

    async def look() -> tuple[list[MemberStatus], Groups]:
        rows = await found.status()
        groups: Groups = {}
        for broker in found.plan.brokers:
            try:
                group = await found.group(broker)
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
            if groups:  # a member that is refused is of no use to its group
                is_well &= not any(row.not_ready for row in rows)
            return 0 if is_well else EXIT_NOT_SERVING
        time.sleep(WATCH_S)
        click.echo()


@cluster.command("handover")
@click.argument("name", required=False)
@_directory_option
def handover(name: str | None, directory: Path) -> int:
    """Have another node of a cluster with failover lead: NAME, or the first that has everything.

    The one that leads takes no more messages, waits until the other one has all, and gives the lead
    to it. Nothing is lost, and producers wait for a moment only. Of several groups NAME says which:
    it may be a broker's name too.
    """
    from rocketbed.cluster.cluster import LocalCluster

    found = LocalCluster.load(directory)
    group = run(lambda: found.hand_over(name))
    show(group.lines())
    return 0


@cluster.command("force-leader")
@click.argument("name")
@click.option("--accept-loss", is_flag=True, required=True, help="Acknowledged messages may go.")
@_directory_option
def force_leader(name: str, accept_loss: bool, directory: Path) -> int:
    """Let NAME lead a cluster with failover although it may lack acknowledged messages.

    For when nobody that has everything will come back. What the others have beyond its log is cut,
    and `cluster status` says from then on since which epoch messages may be lost.
    """
    from rocketbed.cluster.cluster import LocalCluster

    found = LocalCluster.load(directory)
    group = run(lambda: found.force_leader(name))
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
    a copy is kept in rocketbed.cut in its store. A slave that does not answer, or lacks what
    another node has by its own word or by its files, or has other messages in that place, is
    refused, since what is missing may have been acknowledged. Only a former master that does not
    answer, and acknowledged nothing without a slave, may have more.
    """
    from rocketbed.cluster.cluster import LocalCluster
    from rocketbed.cluster.lifecycle import claimed

    with claimed(directory):
        found = LocalCluster.load(directory)
        former = found.plan.master(found.plan.member(name).broker).name

        async def change() -> list[MemberStatus]:
            await found.promote(name, force=force)
            return await found.status()

        rows = run(change)
    click.echo(f"{name} is now the master, {former} is its slave")
    show(status_lines(rows))
    return 0


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set {text}: expected KEY=VALUE")
    return key.strip(), value.strip()
