"""Which queues of a topic a member of a group reads, as RocketMQ's clients work it out.

Each member does this by itself from the same two lists, so all have to use the same rule; a group
may have Java's consumers among its members, which use `average` unless told otherwise.
Pure. Source: wire.md 6.3.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from hashlib import md5
from typing import Final, Literal, Protocol

from rocketbed.wire.bodies import MessageQueue

VIRTUAL_NODES: Final = 10
"""Places of a member on the ring of `consistent_hash`."""

AllocationName = Literal["average", "circle", "consistent_hash"]


class Allocation(Protocol):
    """A rule: queues and members are sorted, and `me` is one of the members."""

    def __call__(
        self, me: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """The queues of `me`."""
        ...


def average(me: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """A block of neighbours for each; the first ones get one more where it does not come out."""
    place, (each, over) = members.index(me), divmod(len(queues), len(members))
    begin = place * each + min(place, over)
    return list(queues[begin : begin + each + (place < over)])


def circle(me: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """One queue after the other to each in turn."""
    return list(queues[members.index(me) :: len(members)])


def consistent_hash(
    me: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Who comes or goes takes queues, or leaves them, without moving those of others."""
    ring = {_hash(f"{one}-{place}"): one for one in members for place in range(VIRTUAL_NODES)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        key = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
            f" queueId={queue.queue_id}]"
        )
        return ring[places[bisect_left(places, _hash(key)) % len(places)]]

    return [queue for queue in queues if owner(queue) == me]


def machine_room(rooms: Collection[str]) -> Allocation:
    """Only queues of brokers whose name is `room@broker` with one of these rooms, shared evenly;
    those that do not come out even go one by one to the first members."""

    def allocate(
        me: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        near = [queue for queue in queues if _room(queue) in rooms]
        place, (each, over) = members.index(me), divmod(len(near), len(members))
        own = near[place * each : (place + 1) * each]
        return own + (near[place + each * len(members) :][:1] if place < over else [])

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
