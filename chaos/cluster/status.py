"""What one member of a cluster that outlives its starter does at the moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocketbed.chaos.cluster.plan import NAMESERVER, ClusterMember


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    member: ClusterMember
    pid: int | None
    """None: it does not run."""
    info: Mapping[str, str] | None
    """A node's runtime information; None when it does not answer."""
    is_routed: bool
    """Whether the nameserver routes to it; of a nameserver, whether it answers."""

    @property
    def is_serving(self) -> bool:
        return self.is_routed and (self.info is not None or not self.member.is_node)

    @property
    def role(self) -> str:
        """`nameserver`, `master` or `slave`."""
        if not self.member.is_node:
            return NAMESERVER
        return "slave" if self.member.broker_id else "master"

    @property
    def state(self) -> str:
        """`down`, `serving` or `not serving`."""
        if self.pid is None:
            return "down"
        return "serving" if self.is_serving else "not serving"

    def as_row(self) -> dict[str, Any]:
        return {
            "name": self.member.name,
            "role": self.role,
            "brokerId": self.member.broker_id if self.member.is_node else None,
            "address": self.member.address,
            "pid": self.pid,
            "state": self.state,
            "minOffset": self.offset("commitLogMinOffset"),
            "maxOffset": self.offset("commitLogMaxOffset"),
            "messages": self.offset("putMessageTimesTotal"),
            "scrubbedTo": self.offset("scrubbedTo"),
            "remarks": self.remarks,
        }

    @property
    def remarks(self) -> list[str]:
        """What is, or was, wrong with a node's store; empty if it has nothing to tell."""
        info = self.info or {}
        found = []
        if info.get("trouble"):
            found.append(f"trouble: {info['trouble']}")
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
        if mended := self.offset("mendedUnits"):
            found.append(f"{mended} queue units were not what the log says; they are mended")
        if unqueued := self.unqueued:
            found.append(unqueued)
        return found

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
