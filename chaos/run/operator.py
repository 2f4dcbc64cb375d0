"""What an operator of a group with failover asks of it: another leader, and whether all is well."""

from typing import Any, Final

import trio

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.run.load import ClientFailure
from rocketbed.chaos.run.members import Members
from rocketbed.client.admin import Admin

NO_FAILOVER: Final = "no controller of ours says who leads here: failover = true is needed"
TRY_S: Final = 20.0
"""For a leader that cannot be replaced yet, or replicas that have not all come."""
PAUSE_S: Final = 0.1


async def hand_over(members: Members, node: str) -> bool:
    """Have another one lead in this node's place that has everything; whether one does."""
    group, backend = members.members[node].group, members.backend
    host, port = backend.address(node)
    with trio.move_on_after(TRY_S):
        while True:
            found = await backend.elected(group)
            if found is None or found.node != node:
                return False
            try:
                async with _admin(members) as admin:
                    await admin.hand_over(f"{host}:{port}", group, to=-1, epoch=found.epoch)
                return True
            except ClientFailure:
                await trio.sleep(PAUSE_S)
    return False


async def force_leader(members: Members, node: str) -> bool:
    """Have this node lead, whatever it lacks; whether it is named.

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


async def known(members: Members, group: str) -> dict[str, Any] | None:
    """What the controller has on record of a group. Raises one of `ClientFailure`."""
    async with _admin(members) as admin:
        return (await admin.failover_groups()).get(group)


async def trouble(members: Members, group: str) -> str:
    """Why the state of a group is not known; empty where it is."""
    try:
        found = await known(members, group)
    except ClientFailure as failure:
        return str(failure)
    if found is None:
        return f"its controller knows of no group {group}"
    return str(found.get("damaged", ""))


def _admin(members: Members) -> Admin:
    backend = members.backend
    return Admin(backend.world, nameservers=backend.nameservers())
