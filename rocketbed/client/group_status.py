"""Status of a group with failover, from its controller's record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Status of a group with failover, from its controller's record."""

    epoch: int
    leader: int | None
    """Number of the leading replica; None without a leader."""
    in_sync: tuple[int, ...]
    """Replicas that hold every acknowledged message, including the leader."""
    eligible: tuple[int, ...]
    """Replicas that may be elected if no in-sync replica is available."""
    addresses: Mapping[int, str]
    """Address of each replica for clients, `host:port`."""
    min_in_sync: int
    policy: str
    unclean: tuple[int, ...]
    """Epochs whose leader an operator forced."""
    silent_s: Mapping[int, float | None]
    """Seconds since each replica's last contact; None: never, or its controller has forgotten
    it."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of replicas; a replica without one is shown by its number."""

    @classmethod
    def read(cls, row: Mapping[str, Any], names: Mapping[int, str] | None = None) -> "GroupStatus":
        """Read an entry of `Admin.failover_groups`."""
        entry = row["entry"]
        return cls(
            epoch=entry["epoch"],
            leader=entry["leader"],
            in_sync=tuple(sorted(map(int, entry["in_sync"]))),
            eligible=tuple(sorted(map(int, entry["eligible"]))),
            addresses={int(replica): at["address"] for replica, at in entry["replicas"].items()},
            min_in_sync=entry["min_in_sync"],
            policy=entry["policy"],
            unclean=tuple(entry["unclean"]),
            silent_s={int(replica): value for replica, value in row.get("silent_s", {}).items()},
            names=names or {},
        )

    def state_of(self, replica: int) -> str:
        """Return `leads`, `in sync`, `eligible` (may be elected if no replica in sync is available)
        or `behind`."""
        if replica == self.leader:
            return "leads"
        if replica in self.in_sync:
            return "in sync"
        return "eligible" if replica in self.eligible else "behind"

    def as_json(self) -> dict[str, Any]:
        """Return the status for `--json`."""
        return {
            "epoch": self.epoch,
            "leader": self.leader,
            "inSync": self.in_sync,
            "eligible": self.eligible,
            "minInSync": self.min_in_sync,
            "policy": self.policy,
            "unclean": self.unclean,
            "silentSeconds": {str(number): value for number, value in self.silent_s.items()},
        }

    def lines(self) -> list[str]:
        """Return the status as lines of text."""
        leader = () if self.leader is None else (self.leader,)
        lines = [
            f"epoch {self.epoch}: {self._named(*leader)} leads; in sync:"
            f" {self._named(*self.in_sync)}, at least"
            f" {self.min_in_sync} needed; policy {self.policy}"
        ]
        if self.eligible:
            lines.append(f"eligible, though not in sync: {self._named(*self.eligible)}")
        if not (self.in_sync or self.eligible):
            lines.append(
                "each replica may lack what was acknowledged (their logs say why), so that none is"
                " made leader by itself: `force-leader` the one with the longest log"
            )
        elif self.leader is None:
            lines.append(
                "no messages are taken until one that is in sync or eligible is started again; if"
                " none of them ever comes back, `force-leader` makes another one lead"
            )
        lines += [f"possible loss since epoch {epoch}: it was forced" for epoch in self.unclean]
        return lines

    def _named(self, *numbers: int) -> str:
        return (
            ", ".join(self.names.get(number, f"replica {number}") for number in numbers) or "nobody"
        )
