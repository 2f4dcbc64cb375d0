"""`rocketbed failover`: groups that fail over by themselves, wherever they run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import trio

from rocketbed.cli.client import json_option, nameserver_option, show, show_json, table, with_admin

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.client.group_status import GroupStatus

EXIT_NOT_SERVING = 1
Info = dict[str, str]


@click.group("failover")
def failover() -> None:
    """Groups with failover: who leads, hand the lead over, force a leader.

    For any cluster that a nameserver with a controller looks after; `rocketbed cluster` does the
    same by the names of a cluster's members.
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
            for found in groups.values():
                for replica in found.get("entry", {}).get("replicas", {}).values():
                    nursery.start_soon(ask, replica["address"])
        return groups, infos

    groups, infos = with_admin(nameservers, look)
    known = {
        name: GroupStatus.read(found) for name, found in groups.items() if "damaged" not in found
    }
    damaged = {name: found["damaged"] for name, found in groups.items() if "damaged" in found}
    if as_json:
        rows = {
            name: {**group.as_json(), "replicas": _rows(group, infos)}
            for name, group in known.items()
        }
        show_json({"groups": rows, "groupErrors": damaged})
    else:
        lines = [line for name, group in known.items() for line in _lines(name, group, infos)]
        lines += [f"{name}: the group's state is unknown: {text}" for name, text in damaged.items()]
        show(lines or ["the controller knows of no group"])
    is_well = not damaged and all(group.leader is not None for group in known.values())
    return 0 if is_well else EXIT_NOT_SERVING


@failover.command("handover")
@click.argument("group")
@click.option(
    "--to",
    type=click.IntRange(0, 63),
    help="Replica's number; else the first that has everything.",
)
@nameserver_option
def handover(group: str, to: int | None, nameservers: str) -> int:
    """Have another replica of GROUP, a broker name, lead.

    The one that leads takes no more messages, waits until the other one has all, and gives the lead
    to it. Nothing is lost, and producers wait for a moment only.
    """

    async def ask(admin: Admin) -> GroupStatus:
        known = await _known(admin, group)
        if known.leader is None:
            raise click.ClickException(f"{group}: nobody leads it: see `rocketbed failover status`")
        if to is not None and to == known.leader:
            raise click.ClickException(f"{group}: replica {to} leads already")
        address = known.addresses[known.leader]
        chosen = -1 if to is None else to
        return _read(await admin.hand_over(address, group, to=chosen, epoch=known.epoch))

    show(with_admin(nameservers, ask).lines())
    return 0


@failover.command("force-leader")
@click.argument("group")
@click.argument("replica", type=click.IntRange(0, 63))
@click.option("--accept-loss", is_flag=True, required=True, help="Acknowledged messages may go.")
@nameserver_option
def force_leader(group: str, replica: int, accept_loss: bool, nameservers: str) -> int:
    """Let REPLICA, a number, lead GROUP although it may lack acknowledged messages.

    For when nobody that has everything will come back. What the others have beyond its log is cut,
    and `failover status` says from then on since which epoch messages may be lost.
    """

    async def ask(admin: Admin) -> GroupStatus:
        return _read(await admin.force_leader(group, replica))

    show(with_admin(nameservers, ask).lines())
    return 0


async def _known(admin: Admin, group: str) -> GroupStatus:
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
        one: _number(infos.get(at), "commitLogMaxOffset") for one, at in group.addresses.items()
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
    shown: list[tuple[str, ...]] = [head]
    remarks = []
    for row in _rows(group, infos):
        heard = row["heardSecondsAgo"]
        numbers = (row["maxOffset"], row["confirmedOffset"], row["lag"])
        shown.append(
            (
                str(row["replica"]),
                str(row["address"]),
                str(row["state"]),
                "not" if heard is None else f"{heard:.1f} s ago",
                *("-" if one is None else str(one) for one in numbers),
            )
        )
        if row["notReady"]:
            remarks.append(f"replica {row['replica']}: not ready: {row['notReady']}")
    return [f"{name}: {line}" for line in group.lines()] + table(shown) + remarks


def _number(info: Info | None, name: str) -> int | None:
    text = (info or {}).get(name, "")
    return int(text) if text.isdigit() else None
