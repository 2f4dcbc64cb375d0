"""Failover by hand: which slave may become the master, and the steps that make it one."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from rocketbed.cluster.log_ends import KnownEnd, end_on_disk, has_parted, missing_in, needs_slaves
from rocketbed.cluster.plan import NAMESERVER, ClusterError, ClusterPlan, read_settings

if TYPE_CHECKING:
    from rocketbed.cluster.cluster import LocalCluster

FENCE_S: Final = 3.0
"""What a master that another one replaces may take to stop; then it is killed."""
CATCH_UP_S: Final = 2.0
"""What a slave that is about to be the master may take to have all that another node has."""
LOOK_S: Final = 0.01
"""Pause between looks at the ends of logs."""


class Promotion:
    """Of one slave of a cluster."""

    def __init__(self, cluster: "LocalCluster", name: str) -> None:
        """Raises `ClusterError` for a name that is no member's."""
        self._cluster = cluster
        self._name = name
        self._broker = cluster.plan.member(name).broker
        self._former = cluster.plan.master(self._broker).name
        """The master until then."""

    async def run(self, *, force: bool) -> list[str]:
        """Names of those that were started anew, the new master's first.

        The former master is stopped first, by force if need be, so that there are never two. Those
        that ran run again afterwards, with their new roles. What only the former master had is cut
        from its log and kept in its `rocketbed.cut`. A slave that lacks what another node can be
        seen to have is given `CATCH_UP_S` to get it, and refused then, unless with `force`: it may
        have been acknowledged. Raises `ClientError` if the nameserver does not answer, and
        `ClusterError`; if that says that a member does not serve, the roles have changed.
        """
        cluster, name, former = self._cluster, self._name, self._former
        plan = cluster.plan.promoted(name)
        if cluster.pid(NAMESERVER) is None:
            raise ClusterError(
                f"{NAMESERVER} is not running: start it first, it knows which node is master"
            )
        async with cluster.admin() as admin:
            await admin.cluster()  # or nobody could see that the new master serves
        if not force:
            await self._wait_whole()
        nodes = [one.name for one in plan.nodes(self._broker)]
        running = [one for one in nodes if cluster.pid(one) is not None]
        again = [one for one in running if one != name and changes_role(cluster, plan, one)]
        if former in running:
            await cluster.stop(former, timeout_s=FENCE_S)
            if not force:
                await self._look_again()
        for one in (name, *again):
            if cluster.pid(one) is not None:
                await cluster.stop(one)
        cluster.plan = plan
        plan.save(cluster.directory)
        await cluster.start(name)
        if again:
            await cluster.start(*again)
        return [name, *again]

    async def _wait_whole(self) -> None:
        """Wait until a slave has all that the other nodes had at first. Raises `ClusterError`.

        What the master takes meanwhile is for `_look_again`.
        """
        until = trio.current_time() + CATCH_UP_S
        others = [end for end in await self.ends() if end.name != self._name]
        while problem := missing_in(own := await self._end(self._name), others):
            if self._cluster.pid(self._name) is None or trio.current_time() >= until:
                raise ClusterError(f"{problem}; or use --force to promote it as it is")
            await trio.sleep(LOOK_S)
            for place, end in enumerate(others):
                if end.parted:  # one that follows may have been about to be cut
                    others[place] = replace(end, parted=await self._has_parted(own, end))

    async def _look_again(self) -> None:
        """The same without waiting, now that nobody acknowledges any more.

        Raises `ClusterError` with the former master started again.
        """
        ends = await self.ends()
        own = next(end for end in ends if end.name == self._name)
        if problem := missing_in(own, [end for end in ends if end.name != self._name]):
            await self._cluster.start(self._former)
            raise ClusterError(
                f"{problem}. {self._former} took messages until it was stopped, and is master"
                " again: try again, or use --force to discard them"
            )

    async def ends(self) -> list[KnownEnd]:
        """Ends of all nodes of its group whose logs count.

        A master that does not answer, and waits for slaves before it acknowledges, has nothing
        acknowledged that no slave has.
        """
        cluster, former = self._cluster, self._former
        nodes = cluster.plan.nodes(self._broker)
        ends = {one.name: await self._end(one.name) for one in nodes}
        own, led = ends[self._name], ends[former]
        for one, end in ends.items():
            ends[one] = replace(end, parted=await self._has_parted(own, end))
        for one, end in ends.items():
            # An old end that the master, whose log the target has, left behind was given up before.
            if end.parted and end.state != "running" and not ends[former].parted:
                ends[one] = replace(end, parted=not await self._has_parted(led, end))
        if needs_slaves(cluster.member_directory(former)) and led.state != "running":
            del ends[former]
        return list(ends.values())

    async def _has_parted(self, one: KnownEnd, other: KnownEnd) -> bool:
        if one.name == other.name or one.offset is None or other.offset is None:
            return False
        stores = [self._cluster.member_directory(end.name) / "store" for end in (one, other)]
        return await self._cluster.world.offload(has_parted, *stores, min(one.offset, other.offset))

    async def _end(self, name: str) -> KnownEnd:
        async with self._cluster.admin() as admin:
            row = await self._cluster.look(self._cluster.plan.member(name), admin)
        offset = row.offset("commitLogMaxOffset")
        if offset is not None:
            return KnownEnd(name, offset, "running", row.unqueued)
        store = self._cluster.member_directory(name) / "store"
        offset = await self._cluster.world.offload(end_on_disk, store)
        return KnownEnd(name, offset, "stopped" if row.pid is None else "not answering")


def changes_role(cluster: "LocalCluster", plan: ClusterPlan, name: str) -> bool:
    """Whether a node's settings differ from what a plan wants of its role."""
    wanted = plan.role_settings(plan.member(name))
    return not wanted.items() <= read_settings(cluster.member_directory(name)).items()
