"""Allocation of a topic's queues to the members of a group, as RocketMQ's clients compute it.

Each member computes it from the same two lists, so all have to use the same rule; a group may have
Java's consumers among its members, which use `average` by default. The functions are pure. Source:
wire.md 6.3.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from hashlib import md5
from typing import Final, Literal, Protocol

from rocketbed.wire.bodies import MessageQueue

VIRTUAL_NODES: Final = 10
"""Points of a member on the ring of `consistent_hash`."""

AllocationName = Literal["average", "circle", "consistent_hash"]


class Allocation(Protocol):
    """An allocation rule: queues and members are sorted, and `me` is one of the members."""

    def __call__(
        self, me: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """Return the queues of `me`."""
        ...


def average(me: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Give each member a block of neighbouring queues; the first members get the remainder, one
    each."""
    place, (share, remainder) = members.index(me), divmod(len(queues), len(members))
    begin = place * share + min(place, remainder)
    return list(queues[begin : begin + share + (place < remainder)])


def circle(me: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Deal the queues to the members in turn."""
    return list(queues[members.index(me) :: len(members)])


def consistent_hash(
    me: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Allocate by consistent hashing: a member that joins or leaves moves few queues of the
    others."""
    ring = {
        _hash(f"{member}-{place}"): member for member in members for place in range(VIRTUAL_NODES)
    }
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        key = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
            f" queueId={queue.queue_id}]"
        )
        return ring[places[bisect_left(places, _hash(key)) % len(places)]]

    return [queue for queue in queues if owner(queue) == me]


def machine_room(rooms: Collection[str]) -> Allocation:
    """Share evenly the queues of brokers whose name is `room@broker` with one of these rooms; the
    remainder goes to the first members, one queue each."""

    def allocate(
        me: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        near = [queue for queue in queues if _room(queue) in rooms]
        place, (share, remainder) = members.index(me), divmod(len(near), len(members))
        own = near[place * share : (place + 1) * share]
        return own + (near[place + share * len(members) :][:1] if place < remainder else [])

    return allocate


ALLOCATIONS: Final[dict[AllocationName, Allocation]] = {
    "average": average,
    "circle": circle,
    "consistent_hash": consistent_hash,
}


def _room(queue: MessageQueue) -> str | None:
    room, at, broker = queue.broker_name.partition("@")
    return room if at and "@" not in broker else None


def _hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
