"""Groups that the register has lost, known from returning replicas that know more about them.

Such a group has no leader until an operator chooses one: the first replica to return may lack what
was acknowledged (replication.md 7.9).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rocketbed.replication.election import refuse_shorter
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.errors import ChangeRefused, GroupUnknown
from rocketbed.replication.register.register import new_group
from rocketbed.wire.headers_failover import RegisterReplicaRequest

WAITING_S: Final = 5.0
"""Time within which a waiting replica of a lost group asks again, or is forgotten."""
EPOCHS_UNSEEN: Final = 1000
"""Upper bound of the epochs since the newest one that a replica of a lost group knows."""


@dataclass(frozen=True, slots=True)
class Refounding:
    """New beginning of a lost group."""

    new: GroupEntry
    replica: Replica
    epoch: int
    """Higher than any that the group ever had."""


class LostGroups:
    """The waiting replicas."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` in seconds."""
        self._now = now
        self._waiting: dict[tuple[str, int], tuple[float, RegisterReplicaRequest]] = {}
        """Time of each one's last request, and the request."""

    def clear(self) -> None:
        """Forget all waiting replicas."""
        self._waiting.clear()

    def of(self, group: str, but: int = -1) -> dict[int, RegisterReplicaRequest]:
        """Return the replicas of a group that the register does not know; without replica `but`."""
        requests = self._asking().items()
        return {
            number: header for (name, number), header in requests if name == group and number != but
        }

    def _asking(self) -> dict[tuple[str, int], RegisterReplicaRequest]:
        """Return the requests of replicas that still wait."""
        since = self._now() - WAITING_S
        self._waiting = {
            key: waiting for key, waiting in self._waiting.items() if waiting[0] >= since
        }
        return {key: header for key, (_, header) in self._waiting.items()}

    def refusal(self, header: RegisterReplicaRequest) -> GroupUnknown:
        """Return the answer for a replica; one that knows more about its group than the register
        waits."""
        if max(header.promised, header.epoch) > 0:
            self._waiting[header.group, header.replica] = self._now(), header
        return GroupUnknown(self._reason(header.group))

    def reasons(self) -> dict[str, str]:
        """Return by group the answer for its replicas."""
        return {name: self._reason(name) for name in sorted({name for name, _ in self._asking()})}

    def _reason(self, group: str) -> str:
        return (
            f"the register has lost group {group!r}: bring back its newest copy, or have the"
            " replica with the longest log lead once all are here (force-leader); these are:"
            f" {sorted(self.of(group))}"
        )

    def refounding(self, group: str, number: int) -> Refounding:
        """Return an operator's new beginning of a group, with this replica as its leader. Raises
        `GroupUnknown`, `ChangeRefused` if another waiting replica has more."""
        waiting = self.of(group)
        if number not in waiting:
            raise GroupUnknown(
                f"no replica {number} of group {group!r} is registered, or waits to be;"
                f" {', '.join(map(str, sorted(waiting))) or 'none'} of that group do"
            )
        leader = waiting[number]
        newest = max(header.epoch for header in waiting.values())
        leads = [
            replica
            for replica, header in waiting.items()
            if header.leads and header.epoch == newest
        ]
        if not leads:
            ends = {replica: (header.epoch, header.end) for replica, header in waiting.items()}
            refuse_shorter(group, number, ends)
        elif number not in leads:  # while it still leads, ends of different moments say nothing
            raise ChangeRefused(
                f"replica {leads[0]} of group {group!r} still leads it: force that one, or stop it"
                " first, and lose what only it has"
            )
        uid = leader.groupUid or founded_uid(leader)
        return Refounding(
            new_group(group, replicas=leader.replicas, policy=Policy(leader.policy), uid=uid),
            Replica(leader.uuid, leader.incarnation, leader.address, leader.haAddress),
            EPOCHS_UNSEEN + max(max(leader.promised, leader.epoch) for leader in waiting.values()),
        )


def founded_uid(founder: RegisterReplicaRequest) -> str:
    """Return the uid of the group that it founds."""
    return f"{founder.uuid}.{founder.incarnation}"
