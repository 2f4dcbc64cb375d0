"""Manual failover: which slave may become the master, and the steps to make it one."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.cluster.log_ends import NodeEnd, end_on_disk, have_diverged, missing_in, needs_slaves
from rocketbed.cluster.plan import (
    CONFIG,
    NAMESERVER,
    ClusterError,
    ClusterPlan,
    read_settings,
)

if TYPE_CHECKING:
    from rocketbed.cluster.cluster import LocalCluster

FENCE_S: Final = 3.0
"""Time for a former master to stop, seconds; then it is killed."""
CATCH_UP_S: Final = 2.0
"""Time for the new master to catch up with another node, seconds."""
LOOK_S: Final = 0.01
"""Pause between checks of the ends of logs, seconds."""


class Promotion:
    """Promotion of one slave of a cluster."""

    def __init__(self, cluster: "LocalCluster", name: str) -> None:
        """Raises `ClusterError` for an unknown name."""
        self._cluster = cluster
        self._name = name
        self._broker = cluster.plan.member(name).broker
        self._former = cluster.plan.master(self._broker).name
        """The master until then."""

    async def run(self, *, force: bool) -> list[str]:
        """Promote the slave; return the names of the members that were restarted, the new master
        first.

        The former master is stopped first, by force if necessary, so that there are never two.
        Other running members are restarted with their new roles. What only the former master had is
        truncated from its log and kept in its `rocketbed.cut`. A slave whose log is behind another
        node's gets `CATCH_UP_S` seconds to catch up, and is then refused unless `force` is set,
        because the missing messages may have been acknowledged. Raises `ClientError` if the
        nameserver does not answer, and `ClusterError`; if the latter says that a member does not
        serve, the roles have changed.
        """
        cluster, name, former = self._cluster, self._name, self._former
        plan = cluster.plan.promoted(name)
        if cluster.pid(NAMESERVER) is None:
            raise ClusterError(
                f"{NAMESERVER} is not running: start it first, it knows which node is master"
            )
        async with cluster.admin() as admin:
            await admin.cluster()  # the nameserver has to tell when the new master serves
        if not force:
            await self._wait_whole()
        nodes = [node.name for node in plan.nodes(self._broker)]
        running = [node for node in nodes if cluster.pid(node) is not None]
        restarted = [node for node in running if node != name and changes_role(cluster, plan, node)]
        if former in running:
            await cluster.stop(former, timeout_s=FENCE_S)
            if not force:
                await self._check_again()
        for node in (name, *restarted):
            if cluster.pid(node) is not None:
                await cluster.stop(node)
        cluster.plan = plan
        plan.save(cluster.directory)
        await cluster.start(name)
        if restarted:
            await cluster.start(*restarted)
        return [name, *restarted]

    async def _wait_whole(self) -> None:
        """Wait until the slave has all that the other nodes had at first. Raises `ClusterError`.

        Messages that the master accepts meanwhile are left to `_check_again`.
        """
        until = trio.current_time() + CATCH_UP_S
        ends = [end for end in await self.ends() if end.name != self._name]
        while problem := missing_in(own := await self._end(self._name), ends):
            if self._cluster.pid(self._name) is None or trio.current_time() >= until:
                raise ClusterError(f"{problem}; or use --force to promote it as it is")
            await trio.sleep(LOOK_S)
            for number, end in enumerate(ends):
                if end.diverged:  # a running slave may have been about to truncate
                    ends[number] = replace(end, diverged=await self._has_diverged(own, end))

    async def _check_again(self) -> None:
        """Compare the logs once more, without waiting, now that no node acknowledges messages.

        Raises `ClusterError` after starting the former master again.
        """
        ends = await self.ends()
        own = next(end for end in ends if end.name == self._name)
        if problem := missing_in(own, [end for end in ends if end.name != self._name]):
            await self._cluster.start(self._former)
            raise ClusterError(
                f"{problem}. {self._former} took messages until it was stopped, and is master"
                " again: try again, or use --force to discard them"
            )

    async def ends(self) -> list[NodeEnd]:
        """Return the ends of the logs of its group's nodes, without those that do not matter.

        A master that does not answer, and waits for slaves before it acknowledges, has acknowledged
        nothing that no slave has.
        """
        cluster, former = self._cluster, self._former
        nodes = cluster.plan.nodes(self._broker)
        ends = {node.name: await self._end(node.name) for node in nodes}
        own, led = ends[self._name], ends[former]
        for node, end in ends.items():
            ends[node] = replace(end, diverged=await self._has_diverged(own, end))
        for node, end in ends.items():
            # A tail that the current master does not have, and the target's log follows the master,
            # was already discarded by an earlier promotion.
            if end.diverged and end.state != "running" and not ends[former].diverged:
                ends[node] = replace(end, diverged=not await self._has_diverged(led, end))
        if needs_slaves(cluster.member_directory(former)) and led.state != "running":
            del ends[former]
        return list(ends.values())

    async def _has_diverged(self, first: NodeEnd, second: NodeEnd) -> bool:
        if first.name == second.name or first.offset is None or second.offset is None:
            return False
        stores = [self._cluster.member_directory(end.name) / "store" for end in (first, second)]
        return await self._cluster.world.offload(
            have_diverged, *stores, min(first.offset, second.offset)
        )

    async def _end(self, name: str) -> NodeEnd:
        async with self._cluster.admin() as admin:
            row = await self._cluster.look(self._cluster.plan.member(name), admin)
        offset = row.offset("commitLogMaxOffset")
        if offset is not None:
            return NodeEnd(name, offset, "running", row.unqueued)
        store = self._cluster.member_directory(name) / "store"
        offset = await self._cluster.world.offload(end_on_disk, store)
        return NodeEnd(name, offset, "stopped" if row.pid is None else "not answering")


def lacking_copies(cluster: "LocalCluster", name: str) -> str:
    """Return why a master takes no messages until another replica follows, and what to do; empty if
    enough of its group run."""
    directory = cluster.member_directory(name)
    if not needs_slaves(directory):
        return ""
    needed = int(read_settings(directory)["inSyncReplicas"])
    nodes = [node.name for node in cluster.plan.nodes(cluster.plan.member(name).broker)]
    down = [node for node in nodes if cluster.pid(node) is None]
    if len(nodes) - len(down) >= needed:
        return ""
    return (
        f"{name} refuses every send until {needed} copies are in sync, and {len(nodes) - len(down)}"
        f" of {len(nodes)} nodes run: start {', '.join(down)} again with `rocketbed cluster up`; or"
        f" accept fewer copies: set inSyncReplicas in {directory / CONFIG}, then `rocketbed cluster"
        " down` and `up`"
    )


def changes_role(cluster: "LocalCluster", plan: ClusterPlan, name: str) -> bool:
    """True if a node's settings differ from the plan's for its role."""
    role_settings = plan.role_settings(plan.member(name))
    return not role_settings.items() <= read_settings(cluster.member_directory(name)).items()
