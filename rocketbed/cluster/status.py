"""Current status of one member of a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocketbed.cluster.plan import NAMESERVER, ClusterMember


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    member: ClusterMember
    pid: int | None
    """Process id; None if it does not run."""
    info: Mapping[str, str] | None
    """Runtime information of a node; None when it does not answer."""
    is_routed: bool
    """True if the nameserver routes to it; for a nameserver, if it answers."""
    broker_id: int
    """Broker id of its route, if it has one; with failover 0 for the leader."""

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
        """`down`, `serving`, `not routed` (it answers, but no nameserver has it) or `not
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
        """Reasons why clients cannot use a node, and present or past trouble of its store; empty if
        none."""
        info = self.info or {}
        remarks = []
        if info.get("trouble"):
            remarks.append(f"trouble: {info['trouble']}")
        if self.not_ready and self.not_ready != info.get("trouble"):
            remarks.append(f"not ready: {self.not_ready}")
        if info.get("damagedRanges"):
            remarks.append(f"damage in the log, bytes {info['damagedRanges']}: heal it")
        if info.get("indexDamage"):
            remarks.append(f"the index is damaged: {info['indexDamage']}; start the node again")
        for cut in filter(None, info.get("acceptedCuts", "").split(";")):
            offset, flushed, messages = (*cut.split(":"), "?", "?")[:3]
            remarks.append(
                f"truncated at {offset} by an operator's order: it was on disk up to {flushed}, at"
                f" most {messages} acknowledged messages were given up"
            )
        if kept_bytes := self.offset("keptCutBytes"):
            remarks.append(
                f"{kept_bytes} bytes that were truncated, or replaced, are kept in"
                " rocketbed.cut in its store: look whether they hold messages that are missed, then"
                " move them away"
            )
        if unmade := info.get("queuesUnmade"):
            remarks.append(
                f"queues of {unmade} are made again from the log: a stop now is not clean"
            )
        if healed := self.offset("mendedUnits"):
            remarks.append(f"{healed} queue units were not what the log says; they are healed")
        if unqueued := self.unqueued:
            remarks.append(unqueued)
        return remarks

    @property
    def not_ready(self) -> str:
        """Reason why clients cannot use a node, as it reports it; empty if they can, or it does not
        answer."""
        return (self.info or {}).get("rbNotReady", "")

    @property
    def unqueued(self) -> str:
        """Description of a node's messages that cannot be pulled from it; empty if there are
        none."""
        if not (count := self.offset("unqueuedRecords")):
            return ""
        where = (self.info or {}).get("unqueuedWhere", "")
        return f"{count} good records stand in no queue" + (f" ({where})" if where else "")

    def offset(self, name: str) -> int | None:
        """Return a number of the runtime information, such as `commitLogMaxOffset`."""
        text = (self.info or {}).get(name, "")
        return int(text) if text.isdigit() else None
