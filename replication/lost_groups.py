"""Groups that the register has lost, as the replicas tell that come back and know more of them.

Nobody leads such a group before an operator says who: whoever comes first may lack what was
acknowledged (replication.md 7.9).
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
"""A replica that waits for its lost group asks again within this, or does so no more."""
EPOCHS_UNSEEN: Final = 1000
"""More than can have been led since the newest that a replica of a lost group knows of."""


@dataclass(frozen=True, slots=True)
class Refounding:
    """How a lost group begins anew."""

    new: GroupEntry
    replica: Replica
    epoch: int
    """Higher than any that it ever had."""


class LostGroups:
    """The replicas that wait."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` in seconds."""
        self._now = now
        self._waiting: dict[tuple[str, int], tuple[float, RegisterReplicaRequest]] = {}
        """When they asked last, and for what."""

    def clear(self) -> None:
        """Nobody waits here any more."""
        self._waiting.clear()

    def of(self, group: str, but: int = -1) -> dict[int, RegisterReplicaRequest]:
        """Replicas that know of a group which the register does not; without this one."""
        found = self._asking().items()
        return {one: asked for (name, one), asked in found if name == group and one != but}

    def _asking(self) -> dict[tuple[str, int], RegisterReplicaRequest]:
        """Who still asks."""
        since = self._now() - WAITING_S
        self._waiting = {key: one for key, one in self._waiting.items() if one[0] >= since}
        return {key: asked for key, (_, asked) in self._waiting.items()}

    def refusal(self, asked: RegisterReplicaRequest) -> GroupUnknown:
        """What a replica is told; one that knows more of its group than the register waits."""
        if max(asked.promised, asked.epoch) > 0:
            self._waiting[asked.group, asked.replica] = self._now(), asked
        return GroupUnknown(self._reason(asked.group))

    def reasons(self) -> dict[str, str]:
        """By group, what its replicas are told."""
        return {name: self._reason(name) for name in sorted({name for name, _ in self._asking()})}

    def _reason(self, group: str) -> str:
        return (
            f"the register has lost group {group!r}: bring back its newest copy, or have the"
            " replica with the longest log lead once all are here (force-leader); these are:"
            f" {sorted(self.of(group))}"
        )

    def refounding(self, group: str, number: int) -> Refounding:
        """By the word of an operator, with this replica as its leader. Raises `GroupUnknown`,
        `ChangeRefused` if another one that waits has more."""
        waiting = self.of(group)
        if number not in waiting:
            raise GroupUnknown(
                f"no replica {number} of group {group!r} is registered, or waits to be;"
                f" {', '.join(map(str, sorted(waiting))) or 'none'} of that group do"
            )
        one = waiting[number]
        newest = max(asked.epoch for asked in waiting.values())
        leads = [other for other, asked in waiting.items() if asked.leads and asked.epoch == newest]
        if not leads:
            ends = {other: (asked.epoch, asked.end) for other, asked in waiting.items()}
            refuse_shorter(group, number, ends)
        elif number not in leads:  # ends of different moments tell nothing while it goes on
            raise ChangeRefused(
                f"replica {leads[0]} of group {group!r} still leads it: force that one, or stop it"
                " first, and lose what only it has"
            )
        uid = one.groupUid or founded_uid(one)
        return Refounding(
            new_group(group, replicas=one.replicas, policy=Policy(one.policy), uid=uid),
            Replica(one.uuid, one.incarnation, one.address, one.haAddress),
            EPOCHS_UNSEEN + max(max(one.promised, one.epoch) for one in waiting.values()),
        )


def founded_uid(founder: RegisterReplicaRequest) -> str:
    """Of the group that it founds."""
    return f"{founder.uuid}.{founder.incarnation}"
