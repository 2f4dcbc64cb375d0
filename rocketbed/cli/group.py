"""`rocketbed group`: consumer groups, their lag, and a reset of their positions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from rocketbed.cli.client import (
    json_option,
    nameserver_option,
    queue_text,
    show,
    show_json,
    table,
    with_admin,
)
from rocketbed.cli.main import CommandGroup
from rocketbed.cli.pull import Start, StartType

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.client.positions import QueueLag, QueueReset

SYSTEM_GROUPS: Final = frozenset(
    {
        "DEFAULT_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SCHEDULE_CONSUMER",
        "SELF_TEST_C_GROUP",
        "TOOLS_CONSUMER",
        "__MONITOR_CONSUMER",
    }
)
SYSTEM_PREFIXES: Final = ("CID_ONS", "CID_RMQ_SYS_")


@click.group("group", cls=CommandGroup)
def group() -> None:
    """List consumer groups, show their lag, reset their positions."""


@group.command("list")
@click.option("--all", "show_all", is_flag=True, help="Include the brokers' own groups.")
@nameserver_option
@json_option
def list_command(nameservers: str, show_all: bool, as_json: bool) -> int:
    """List the groups that brokers know or that have positions, with their topics."""
    from rocketbed.client.positions import groups_with_topics

    groups = {
        name: topics
        for name, topics in with_admin(nameservers, groups_with_topics).items()
        if show_all or topics or not _is_system(name)
    }
    if as_json:
        show_json([{"group": name, "topics": topics} for name, topics in groups.items()])
    else:
        rows = [(name, " ".join(topics) or "-") for name, topics in groups.items()]
        show(table([("group", "topics"), *rows]) if rows else ["no group is known"])
    return 0


@group.command("lag")
@click.argument("name", metavar="GROUP")
@click.option("-t", "--topic", help="Only this topic.")
@nameserver_option
@json_option
def lag(name: str, topic: str | None, nameservers: str, as_json: bool) -> int:
    """Show how far GROUP is behind: end, position and lag of each queue, and the total.

    The age is that of the last message that the group has consumed.
    """
    from rocketbed.client.positions import group_lag

    async def look(admin: Admin) -> list[QueueLag]:
        return await group_lag(admin, name, topic)

    rows = with_admin(nameservers, look)
    total = sum(row.lag or 0 for row in rows)
    if as_json:
        show_json({"group": name, "queues": [_lag_json(row) for row in rows], "lag": total})
        return 0
    now_ms = time.time_ns() // 1_000_000
    cells = [("topic", "queue", "end", "position", "lag", "age")]
    cells += [
        (
            row.queue.topic,
            queue_text(row.queue),
            str(row.end),
            _or_dash(row.position),
            _or_dash(row.lag),
            "-" if row.consumed_ms is None else f"{max(now_ms - row.consumed_ms, 0) / 1000:.0f} s",
        )
        for row in rows
    ]
    unread = sum(row.lag is None for row in rows)
    rest = f", without {unread} queues that have no position yet" if unread else ""
    show([*table([*cells]), f"total lag {total}{rest}"])
    return 0


@group.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("-t", "--topic", required=True)
@click.option(
    "--to",
    type=StartType(("first", "last")),
    required=True,
    metavar="first|last|OFFSET|TIME",
    help="New position in each queue.",
)
@click.option("--dry-run", is_flag=True, help="Show the new positions and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@nameserver_option
@json_option
def reset(
    name: str, topic: str, to: Start, dry_run: bool, yes: bool, nameservers: str, as_json: bool
) -> int:
    """Move GROUP to another position in each queue of a topic, after a confirmation.

    Connected members continue there with their next pull.
    """
    from rocketbed.client.positions import LATEST_MS, plan_reset, reset_positions

    if as_json and not (dry_run or yes):
        raise click.UsageError("--json needs --dry-run or --yes: it cannot ask for confirmation")
    time_ms = {"first": 0, "last": LATEST_MS}.get(to.word or "", to.time_ms or 0)

    async def plan(admin: Admin) -> list[QueueReset]:
        return await plan_reset(admin, name, topic, time_ms=time_ms, offset=to.offset)

    async def change(admin: Admin) -> None:
        await reset_positions(admin, name, resets, time_ms=time_ms)

    resets = with_admin(nameservers, plan)
    if not as_json:
        show(_reset_lines(resets))
    if not dry_run:
        question = f"Set these positions of {name} in {topic}?"
        if not yes and not _is_confirmed(question):
            click.echo("nothing was changed; --yes answers the question", err=True)
            raise click.Abort
        with_admin(nameservers, change)
    if as_json:
        queues = [_reset_json(row) for row in resets]
        show_json({"group": name, "topic": topic, "changed": not dry_run, "queues": queues})
    else:
        done = "nothing was changed (--dry-run)" if dry_run else f"{len(resets)} positions set"
        click.echo(done)
    return 0


def _is_confirmed(question: str) -> bool:
    """Ask; an end of the input is a no, an interrupt remains one."""
    try:
        return click.confirm(question, default=False)
    except click.Abort as exc:
        if isinstance(exc.__context__, KeyboardInterrupt):
            raise
        click.echo()  # ends the line of the question
        return False


def _reset_lines(resets: list[QueueReset]) -> list[str]:
    cells = [("queue", "position", "new")]
    cells += [(queue_text(row.queue), _or_dash(row.position), str(row.target)) for row in resets]
    return table([*cells])


def _lag_json(row: QueueLag) -> dict[str, Any]:
    return {
        "topic": row.queue.topic,
        "brokerName": row.queue.broker_name,
        "queueId": row.queue.queue_id,
        "end": row.end,
        "position": row.position,
        "lag": row.lag,
        "lastConsumedTimestamp": row.consumed_ms,
    }


def _reset_json(row: QueueReset) -> dict[str, Any]:
    return {
        "brokerName": row.queue.broker_name,
        "queueId": row.queue.queue_id,
        "position": row.position,
        "newPosition": row.target,
    }


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _is_system(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_PREFIXES)
