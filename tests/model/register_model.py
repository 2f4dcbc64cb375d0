"""What the register has to hold of a group, kept beside a controller: the rules of
replication.md 7.5 to 7.9 once more, as plain values. A refusal changes nothing.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from rocketbed.wire.codes import ResponseCode

DONE, NO, LATE, UNKNOWN, TAKEN = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.CONTROLLER_INVALID_REQUEST),
    int(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
    int(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST),
    int(ResponseCode.SYSTEM_ERROR),
)
"""What is answered: it was made, the rules forbid it, it is about an entry that is no more, the
group is unknown, something else is in the way."""
Heard = tuple[int, bool, int, int]
"""Of a replica that is alive: life, whether it would lead badly, newest epoch, end of the log."""
REFOUNDED: Final = 1000
"""By how much the epoch of a group rises at least whose entry was lost."""


@dataclass
class GroupModel:
    least: int
    """Members below which nothing is confirmed."""
    uuids: dict[int, str] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)
    reserve: dict[int, int] = field(default_factory=dict)
    """Who left when the set was at its minimum: they lack nothing."""
    doubtful: set[int] = field(default_factory=set)
    leader: int | None = None
    epoch: int = 0
    version: int = 0
    unclean: list[int] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        """As an entry shows it."""
        return {
            "lives": self.lives, "uuids": self.uuids, "members": self.members,
            "reserve": self.reserve, "doubtful": sorted(self.doubtful), "leader": self.leader,
            "epoch": self.epoch, "version": self.version, "unclean": self.unclean,
            "least": self.least,
        }  # fmt: skip

    def counts(self, number: int) -> bool:
        """Whether a replica may hold what no other one has."""
        return number in self.members or number in self.reserve or number in self.doubtful

    def register(self, number: int, uuid: str, life: int, *, lossless: bool) -> int:
        known = self.lives.get(number)
        if (known, self.uuids.get(number)) == (life, uuid):
            return DONE
        if known is not None and life <= known:
            return NO
        first = not self.lives
        self.lives[number], self.uuids[number] = life, uuid
        self.version += 1
        if first:
            self.members[number] = life
        else:
            self._drop(number)
            if number in self.reserve and lossless:
                self.reserve[number] = life
            elif number in self.reserve:
                del self.reserve[number]
                self.doubtful.add(number)
        self._full()
        return DONE

    def alter(self, leader: int | None, epoch: int, version: int, members: dict[int, int]) -> int:
        if (leader, epoch, version) != (self.leader, self.epoch, self.version):
            return LATE
        good = all(life in (self.members.get(one), self.lives.get(one))
                   for one, life in members.items())  # fmt: skip
        if leader not in members or not good:
            return NO
        left = {one: life for one, life in self.members.items() if one not in members}
        stay = {one: life for one, life in self.reserve.items() if one not in members}
        self.members, self.reserve = dict(members), stay | left
        self.version += 1
        self._full()
        return DONE

    def gone(self, number: int, life: int) -> None:
        """It is not heard any more, or stops."""
        if self.members.get(number) == life:
            self._drop(number)
            self.version += 1

    def elect(self, alive: dict[int, Heard]) -> bool:
        """Name a leader where there is none; whether one was."""
        for some in (self.members, self.reserve) if self.leader is None else ():
            can = [one for one, life in some.items() if one in alive and alive[one][0] == life]
            if can:
                self._lead(max(can, key=lambda one: (not alive[one][1], *alive[one][2:], -one)))
                return True
        return False

    def hand_over(self, leader: int, epoch: int, to: int) -> int:
        if (leader, epoch) != (self.leader, self.epoch):
            return LATE
        if to not in self.members:
            return NO
        self._lead(to)
        return DONE

    def force(self, number: int, alive: dict[int, Heard]) -> int:
        whole = {**self.members, **self.reserve}
        is_whole = any(alive[one][0] == whole[one] for one in whole if one in alive)
        if is_whole or number not in alive or alive[number][0] != self.lives.get(number):
            return NO
        ends = {one: it[2:] for one, it in alive.items()}
        if any(end > ends[number] for end in ends.values()):
            return NO
        self.members, self.reserve, self.leader = {}, {number: self.lives[number]}, None
        self.unclean.append(self.epoch + 1)
        self._lead(number)
        return DONE

    def refound(self, number: int, uuid: str, life: int, epoch: int) -> None:
        """An operator let the group begin anew."""
        self.uuids, self.lives, self.members = {number: uuid}, {number: life}, {number: life}
        self.leader, self.epoch, self.version, self.unclean = number, epoch, 1, [epoch]
        self.reserve, self.doubtful = {}, set()

    def _lead(self, number: int) -> None:
        self.reserve = {one: life for one, life in self.reserve.items() if one != number}
        self.members = {**self.members, number: self.lives[number]}
        self.leader = number
        self.epoch += 1
        self.version += 1
        self._full()

    def _drop(self, number: int) -> None:
        life = self.members.pop(number, None)
        if life is None:
            return
        if self.leader == number:
            self.leader = None
        if len(self.members) < self.least:
            self.reserve[number] = life

    def _full(self) -> None:
        """A set that is large enough needs nobody beside it."""
        if len(self.members) >= self.least:
            self.reserve, self.doubtful = {}, set()


def shown(entry: Any) -> dict[str, Any]:
    """What a `GroupEntry` says, in the model's words."""
    return {
        "lives": {one: it.incarnation for one, it in entry.replicas.items()},
        "uuids": {one: it.uuid for one, it in entry.replicas.items()},
        "members": dict(entry.in_sync),
        "reserve": dict(entry.eligible),
        "doubtful": sorted(entry.last_known),
        "leader": entry.leader,
        "epoch": entry.epoch,
        "version": entry.version,
        "unclean": list(entry.unclean),
        "least": entry.min_in_sync,
    }
