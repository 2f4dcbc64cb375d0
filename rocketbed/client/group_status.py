"""A group with failover, as its controller has it on record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group with failover, as its controller has it on record."""

    epoch: int
    leader: int | None
    """Replica's number."""
    in_sync: tuple[int, ...]
    """Who has everything that is acknowledged, the leader among them."""
    eligible: tuple[int, ...]
    """Who may lead if nobody of those is left."""
    addresses: Mapping[int, str]
    """Of each replica, `host:port`, where clients reach it."""
    min_in_sync: int
    policy: str
    unclean: tuple[int, ...]
    """Epochs whose leader an operator forced."""
    silent_s: Mapping[int, float | None]
    """Since each was heard; None: never, or it is gone."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Of replicas that have one; the others are called by their numbers."""

    @classmethod
    def read(
        cls, found: Mapping[str, Any], names: Mapping[int, str] | None = None
    ) -> "GroupStatus":
        """Of what `Admin.failover_groups` says of it."""
        entry = found["entry"]
        return cls(
            epoch=entry["epoch"],
            leader=entry["leader"],
            in_sync=tuple(sorted(map(int, entry["in_sync"]))),
            eligible=tuple(sorted(map(int, entry["eligible"]))),
            addresses={int(one): at["address"] for one, at in entry["replicas"].items()},
            min_in_sync=entry["min_in_sync"],
            policy=entry["policy"],
            unclean=tuple(entry["unclean"]),
            silent_s={int(one): value for one, value in found.get("silent_s", {}).items()},
            names=names or {},
        )

    def state_of(self, replica: int) -> str:
        """`leads`, `in sync`, `eligible` (it may lead if nobody in sync is left), `behind`."""
        if replica == self.leader:
            return "leads"
        if replica in self.in_sync:
            return "in sync"
        return "eligible" if replica in self.eligible else "behind"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
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
        """For people."""
        leader = () if self.leader is None else (self.leader,)
        found = [
            f"epoch {self.epoch}: {self._named(*leader)} leads; in sync:"
            f" {self._named(*self.in_sync)}, at least"
            f" {self.min_in_sync} needed; policy {self.policy}"
        ]
        if self.eligible:
            found.append(f"eligible, though not in sync: {self._named(*self.eligible)}")
        if not (self.in_sync or self.eligible):
            found.append(
                "each replica may lack what was acknowledged (their logs say why), so that none is"
                " made leader by itself: `force-leader` the one with the longest log"
            )
        elif self.leader is None:
            found.append(
                "no messages are taken until one that is in sync or eligible is started again; if"
                " none of them ever comes back, `force-leader` makes another one lead"
            )
        found += [f"possible loss since epoch {epoch}: it was forced" for epoch in self.unclean]
        return found

    def _named(self, *numbers: int) -> str:
        return ", ".join(self.names.get(one, f"replica {one}") for one in numbers) or "nobody"
