"""`rocketbed failover`: groups with automatic failover, wherever they run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import trio

from rocketbed.cli.client import (
    group_rows,
    json_option,
    nameserver_option,
    show,
    show_json,
    table,
    with_admin,
)
from rocketbed.cli.main import CommandGroup

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.client.group_status import GroupStatus

EXIT_NOT_SERVING = 1
Info = dict[str, str]


@click.group("failover", cls=CommandGroup)
def failover() -> None:
    """Groups with failover: show the leader, hand the lead over, force a leader.

    For any cluster whose nameserver runs a controller; `rocketbed cluster` does the same by the
    names of a local cluster's members.
    """


@failover.command("status")
@nameserver_option
@json_option
def status(nameservers: str, as_json: bool) -> int:
    """Show each group: epoch, leader, in-sync set, and each replica's end, confirmed end and lag.

    A replica that cannot be reached from here has no numbers. Exits with 1 if a group has no
    leader, or its state is unknown.
    """
    from rocketbed.client.errors import ClientError
    from rocketbed.client.group_status import GroupStatus
    from rocketbed.remoting.errors import RemotingError

    async def look(admin: Admin) -> tuple[dict[str, Any], dict[str, Info]]:
        groups = await admin.failover_groups()
        infos: dict[str, Info] = {}

        async def ask(address: str) -> None:
            with suppress(ClientError, RemotingError):
                infos[address] = await admin.runtime_info(address)

        async with trio.open_nursery() as nursery:
            for record in groups.values():
                for replica in record.get("entry", {}).get("replicas", {}).values():
                    nursery.start_soon(ask, replica["address"])
        return groups, infos

    groups, infos = with_admin(nameservers, look)
    readable = {
        name: GroupStatus.read(found) for name, found in groups.items() if "damaged" not in found
    }
    damaged = {name: found["damaged"] for name, found in groups.items() if "damaged" in found}
    if as_json:
        rows = group_rows({**readable, **damaged})
        for row, group in zip(rows, readable.values(), strict=False):
            row["replicas"] = _rows(group, infos)
        show_json({"groups": rows})
    else:
        lines = [line for name, group in readable.items() for line in _lines(name, group, infos)]
        lines += [f"{name}: the group's state is unknown: {text}" for name, text in damaged.items()]
        show(lines or ["the controller knows of no group"])
    is_well = not damaged and all(group.leader is not None for group in readable.values())
    return 0 if is_well else EXIT_NOT_SERVING


@failover.command("handover")
@click.argument("group")
@click.option(
    "--to",
    type=click.IntRange(0, 63),
    help="Number of the replica; default: the first that is in sync.",
)
@nameserver_option
def handover(group: str, to: int | None, nameservers: str) -> int:
    """Hand the lead of GROUP, a broker name, to another replica.

    The leader stops accepting messages, waits until the other replica has all of them, and hands
    over. No message is lost, and producers wait only for a moment.
    """

    async def ask(admin: Admin) -> GroupStatus:
        current = await _group_of(admin, group)
        if current.leader is None:
            raise click.ClickException(f"{group}: nobody leads it: see `rocketbed failover status`")
        if to is not None and to == current.leader:
            raise click.ClickException(f"{group}: replica {to} leads already")
        address = current.addresses[current.leader]
        chosen = -1 if to is None else to
        return _read(await admin.hand_over(address, group, to=chosen, epoch=current.epoch))

    show(with_admin(nameservers, ask).lines())
    return 0


@failover.command("force-leader")
@click.argument("group")
@click.argument("replica", type=click.IntRange(0, 63))
@click.option(
    "--accept-loss",
    is_flag=True,
    required=True,
    help="Accept that acknowledged messages may be lost.",
)
@nameserver_option
def force_leader(group: str, replica: int, accept_loss: bool, nameservers: str) -> int:
    """Make REPLICA, a number, the leader of GROUP although it may lack acknowledged messages.

    For use when no replica that is in sync will come back. Other replicas truncate what they have
    beyond its log, and from then on `failover status` shows the epoch since which messages may be
    lost.
    """

    async def ask(admin: Admin) -> GroupStatus:
        return _read(await admin.force_leader(group, replica))

    show(with_admin(nameservers, ask).lines())
    return 0


async def _group_of(admin: Admin, group: str) -> GroupStatus:
    from rocketbed.client.group_status import GroupStatus

    groups = await admin.failover_groups()
    if group not in groups:
        names = ", ".join(groups) or "none"
        raise click.ClickException(f"the controller knows of no group {group}: {names}")
    if "damaged" in groups[group]:
        raise click.ClickException(groups[group]["damaged"])
    return GroupStatus.read(groups[group])


def _read(entry: dict[str, Any]) -> GroupStatus:
    from rocketbed.client.group_status import GroupStatus

    return GroupStatus.read({"entry": entry})


def _rows(group: GroupStatus, infos: dict[str, Info]) -> list[dict[str, object]]:
    ends = {
        number: _number(infos.get(at), "commitLogMaxOffset")
        for number, at in group.addresses.items()
    }
    leader_end = None if group.leader is None else ends[group.leader]
    rows: list[dict[str, object]] = []
    for number, address in sorted(group.addresses.items()):
        end = ends[number]
        lag = None if end is None or leader_end is None else max(leader_end - end, 0)
        info = infos.get(address)
        rows.append(
            {
                "replica": number,
                "address": address,
                "state": group.state_of(number),
                "heardSecondsAgo": group.silent_s.get(number),
                "maxOffset": end,
                "confirmedOffset": _number(info, "rbConfirmedOffset"),
                "lag": lag,
                "notReady": (info or {}).get("rbNotReady", ""),
            }
        )
    return rows


def _lines(name: str, group: GroupStatus, infos: dict[str, Info]) -> list[str]:
    head = ("replica", "address", "state", "heard", "log to", "confirmed", "lag")
    cells: list[tuple[str, ...]] = [head]
    remarks = []
    for row in _rows(group, infos):
        seconds_ago = row["heardSecondsAgo"]
        numbers = (row["maxOffset"], row["confirmedOffset"], row["lag"])
        cells.append(
            (
                str(row["replica"]),
                str(row["address"]),
                str(row["state"]),
                "not" if seconds_ago is None else f"{seconds_ago:.1f} s ago",
                *("-" if number is None else str(number) for number in numbers),
            )
        )
        if row["notReady"]:
            remarks.append(f"replica {row['replica']}: not ready: {row['notReady']}")
    return [f"{name}: {line}" for line in group.lines()] + table(cells) + remarks


def _number(info: Info | None, name: str) -> int | None:
    text = (info or {}).get(name, "")
    return int(text) if text.isdigit() else None
