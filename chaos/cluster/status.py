"""What one member of a cluster that outlives its starter does at the moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from rocketbed.chaos.cluster.plan import NAMESERVER, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One member as it is now."""

    member: Member
    pid: int | None
    """None: it does not run."""
    info: Mapping[str, str] | None
    """A node's runtime information; None when it does not answer."""
    is_routed: bool
    """Whether the nameserver routes to it; of a nameserver, whether it answers."""

    @property
    def is_serving(self) -> bool:
        """Whether clients can use it."""
        return self.is_routed and (self.info is not None or not self.member.is_node)

    @property
    def role(self) -> str:
        """`nameserver`, `master` or `slave`."""
        if not self.member.is_node:
            return NAMESERVER
        return "slave" if self.member.broker_id else "master"

    def offset(self, name: str) -> int | None:
        """A number of the runtime information, such as `commitLogMaxOffset`."""
        text = (self.info or {}).get(name, "")
        return int(text) if text.isdigit() else None
