"""What one member of a cluster that outlives its starter does at the moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocketbed.cluster.plan import NAMESERVER, ClusterMember


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    member: ClusterMember
    pid: int | None
    """None: it does not run."""
    info: Mapping[str, str] | None
    """A node's runtime information; None when it does not answer."""
    is_routed: bool
    """Whether the nameserver routes to it; of a nameserver, whether it answers."""
    broker_id: int
    """By which it is routed, if it is; with failover that is 0 for the one that leads."""

    @property
    def is_serving(self) -> bool:
        return self.is_routed and (self.info is not None or not self.member.is_node)

    @property
    def role(self) -> str:
        """`nameserver`, `master` or `slave`."""
        if not self.member.is_node:
            return NAMESERVER
        return "slave" if self.broker_id else "master"

    @property
    def state(self) -> str:
        """`down`, `serving`, `not routed` (it answers, and no nameserver says where it is) or `not
        serving`."""
        if self.pid is None:
            return "down"
        if self.is_serving:
            return "serving"
        return "not serving" if self.info is None else "not routed"

    def as_row(self) -> dict[str, Any]:
        return {
            "name": self.member.name,
            "role": self.role,
            "brokerId": self.broker_id if self.member.is_node else None,
            "address": self.member.address,
            "pid": self.pid,
            "state": self.state,
            "minOffset": self.offset("commitLogMinOffset"),
            "maxOffset": self.offset("commitLogMaxOffset"),
            "confirmedOffset": self.offset("rbConfirmedOffset"),
            "messages": self.offset("putMessageTimesTotal"),
            "scrubbedTo": self.offset("scrubbedTo"),
            "remarks": self.remarks,
        }

    @property
    def remarks(self) -> list[str]:
        """Why clients cannot use a node, and what is, or was, wrong with its store; empty if it has
        nothing to tell."""
        info = self.info or {}
        found = []
        if info.get("trouble"):
            found.append(f"trouble: {info['trouble']}")
        if self.not_ready and self.not_ready != info.get("trouble"):
            found.append(f"not ready: {self.not_ready}")
        if info.get("damagedRanges"):
            found.append(f"damage in the log, bytes {info['damagedRanges']}: heal it")
        if info.get("indexDamage"):
            found.append(f"the index is damaged: {info['indexDamage']}; start the node again")
        for cut in filter(None, info.get("acceptedCuts", "").split(";")):
            offset, known, messages = (*cut.split(":"), "?", "?")[:3]
            found.append(
                f"cut at {offset} by an operator's order: it was on disk up to {known}, at most"
                f" {messages} acknowledged messages were given up"
            )
        if kept := self.offset("keptCutBytes"):
            found.append(
                f"{kept} bytes that were cut off the log, or replaced, are kept in rocketbed.cut in"
                " its store: look whether they hold messages that are missed, then move them away"
            )
        if unmade := info.get("queuesUnmade"):
            found.append(f"queues of {unmade} are made again from the log: a stop now is not clean")
        if mended := self.offset("mendedUnits"):
            found.append(f"{mended} queue units were not what the log says; they are mended")
        if unqueued := self.unqueued:
            found.append(unqueued)
        return found

    @property
    def not_ready(self) -> str:
        """Why clients cannot use a node, in its own words; empty if they can, or it is silent."""
        return (self.info or {}).get("rbNotReady", "")

    @property
    def unqueued(self) -> str:
        """Which messages of a node nobody can pull there, in words; empty if there are none."""
        if not (count := self.offset("unqueuedRecords")):
            return ""
        where = (self.info or {}).get("unqueuedWhere", "")
        return f"{count} good records stand in no queue" + (f" ({where})" if where else "")

    def offset(self, name: str) -> int | None:
        """A number of the runtime information, such as `commitLogMaxOffset`."""
        text = (self.info or {}).get(name, "")
        return int(text) if text.isdigit() else None
