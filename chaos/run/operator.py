"""Requests of the operator of a group with failover: another leader, and the group's state."""

from typing import Any, Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.run.load import ClientFailure
from rocketbed.chaos.run.members import Members
from rocketbed.client.admin import Admin

NO_FAILOVER: Final = "no controller of ours says who leads here: failover = true is needed"
TRY_S: Final = 20.0
"""Time for requests that fail while a leader cannot be replaced yet or replicas are missing."""
PAUSE_S: Final = 0.1


async def hand_over(members: Members, node: str) -> bool:
    """Hand leadership from this node over to an up-to-date replica. Return whether one took it."""
    group, backend = members.members[node].group, members.backend
    host, port = backend.address(node)
    with trio.move_on_after(TRY_S):
        while True:
            elected = await backend.elected(group)
            if elected is None or elected.node != node:
                return False
            try:
                async with _admin(members) as admin:
                    await admin.hand_over(f"{host}:{port}", group, to=-1, epoch=elected.epoch)
                return True
            except ClientFailure:
                await trio.sleep(PAUSE_S)
    return False


async def force_leader(members: Members, node: str) -> bool:
    """Make this node the leader, whatever its log lacks. Return whether it was named.

    Writes a NODE event `forced`.
    """
    group = members.members[node].group
    replica = members.shape.group_nodes()[group].index(node) + 1
    with trio.move_on_after(TRY_S):
        while True:
            try:
                async with _admin(members) as admin:
                    entry = await admin.force_leader(group, replica)
            except ClientFailure:
                await trio.sleep(PAUSE_S)
                continue
            fields = {"epoch": entry["epoch"], "unclean": entry["unclean"]}
            members.backend.history.event(Function.NODE, node, "forced", fields)
            return True
    return False


async def recorded_group(members: Members, group: str) -> dict[str, Any] | None:
    """Return what the controller has on record of a group, None if it has nothing. Raises one of
    `ClientFailure`."""
    async with _admin(members) as admin:
        return (await admin.failover_groups()).get(group)


async def trouble(members: Members, group: str) -> str:
    """Return why the state of a group is unknown; empty if it is known."""
    try:
        entry = await recorded_group(members, group)
    except ClientFailure as failure:
        return str(failure)
    if entry is None:
        return f"its controller knows of no group {group}"
    return str(entry.get("damaged", ""))


def _admin(members: Members) -> Admin:
    backend = members.backend
    return Admin(backend.world, nameservers=backend.nameservers())
