"""Which brokers serve a topic: a cache of what the nameservers say (wire.md 3.6, 4.7).

A route is asked for again when it is half a minute old, and used meanwhile: as long as brokers are
where it says, no send waits for a nameserver. One that someone found wrong is waited for. When no
nameserver answers, or one that has just started knows nothing yet, an old route is better than
none. Brokers are where the latest answer says, whichever topic it was for. A topic that nobody
knows yet is sent to the brokers of `TBW102`, which make it on the first message if they are allowed
to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import trio

from rocketbed.client.errors import NoNameserver, NoRoute, RequestRefused
from rocketbed.client.nameservers import Nameservers
from rocketbed.remoting.client import parse_address
from rocketbed.wire.bodies import (
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    MessageQueue,
    TopicRouteData,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError, RocketbedError
from rocketbed.wire.headers_admin import GetRouteRequest
from rocketbed.world.api import Address, World

Begin = Callable[..., Any]
T = TypeVar("T")

MASTER_ID: Final = 0
DEFAULT_TOPIC: Final = "TBW102"
DEFAULT_QUEUES: Final = 4
"""Queues of a topic that the first message makes, at most (wire.md 4.1)."""
REFRESH_S: Final = 30.0
"""Age at which a route is asked for again (wire.md 6.1)."""
AGAIN_S: Final = 5.0
"""After this long, where no nameserver answered."""
WRONG_AGAIN_S: Final = 0.5
"""After this long, where the answer was the same: many queues of a dead broker ask as one."""
UNUSED_S: Final = 5.0
"""One that nobody used for this long, when it was due, is asked for before it is used."""
UNUSED_WAIT_S: Final = 0.5
"""And used nevertheless, where no answer came within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a topic lives."""

    topic: str
    brokers: dict[str, dict[int, Address]]
    """Broker name -> broker id -> address; id 0 is the master."""
    writable: tuple[MessageQueue, ...]
    """Queues that take messages now: with write permission and a master."""
    ordered: tuple[MessageQueue, ...]
    """Queues with write permission, whether their master is there or not: the base of hash keys,
    so that a key keeps its queue while a master is away."""
    readable: tuple[MessageQueue, ...]
    is_template: bool = False
    """The topic does not exist; these are the brokers that may make it."""

    def master(self, broker_name: str) -> Address | None:
        """Address of a master."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def moved(self, changed: dict[str, dict[int, Address]]) -> "Route":
        """The same queues, where some brokers have other members."""
        brokers = {**self.brokers, **changed}
        writable = tuple(one for one in self.ordered if MASTER_ID in brokers[one.broker_name])
        return replace(self, brokers=brokers, writable=writable)

    def member(self, broker_name: str, broker_id: int) -> tuple[int, Address] | None:
        """Whom to ask instead of a broker id that may be gone: it, the next slave, or any."""
        members = self.brokers.get(broker_name, {})
        for wanted in (broker_id, broker_id + 1 if broker_id else broker_id, *sorted(members)):
            if wanted in members:
                return wanted, members[wanted]
        return None


def route_of(topic: str, data: TopicRouteData, *, template: bool = False) -> Route:
    """A route from a nameserver's answer. Raises `ValueError` for an address or a number of queues
    that cannot be."""
    brokers = {
        broker.broker_name: {
            number: parse_address(text) for number, text in sorted(broker.broker_addrs.items())
        }
        for broker in data.broker_datas
    }
    writable: list[MessageQueue] = []
    ordered: list[MessageQueue] = []
    readable: list[MessageQueue] = []
    for queues in sorted(data.queue_datas, key=lambda item: item.broker_name):
        name = queues.broker_name
        if name not in brokers:
            continue
        read, write = queues.read_queue_nums, queues.write_queue_nums
        if not 0 <= min(read, write) <= max(read, write) <= QUEUES_MAX:
            raise ValueError(f"{read} and {write} queues on broker {name}")
        if template:
            read = write = min(DEFAULT_QUEUES, read)
        rows = [
            MessageQueue(topic=topic, broker_name=name, queue_id=number)
            for number in range(max(read, write))
        ]
        if queues.perm & PERM_READ:
            readable += rows[:read]
        if queues.perm & PERM_WRITE:
            ordered += rows[:write]
            if MASTER_ID in brokers[name]:
                writable += rows[:write]
    return Route(
        topic=topic,
        brokers=brokers,
        writable=tuple(writable),
        ordered=tuple(ordered),
        readable=tuple(readable),
        is_template=template,
    )


@dataclass(slots=True)
class _Entry:
    route: Route
    fetched_at: float
    due_at: float
    """When to ask again, in the background."""
    uses_template: bool
    held_until: float
    """Until then nobody asks, wrong or not."""
    is_stale: bool = False
    """Someone found it wrong: ask before the next use."""
    is_gone: bool = False
    """The topic may not exist any more."""


class Routes:
    """The cache."""

    def __init__(self, world: World, nameservers: Nameservers, begin: Begin) -> None:
        """`begin` starts a task that lives as long as the client."""
        self._world = world
        self._nameservers = nameservers
        self._begin = begin
        self._entries: dict[str, _Entry] = {}
        self._members: dict[str, dict[int, Address]] = {}
        """Broker name -> its members by the latest answer; those in every route."""
        self._locks: dict[str, trio.Lock] = {}
        self.moved = trio.Event()
        """Set, and replaced, when a nameserver has told of another master."""
        self.has_nameserver = True
        """Whether one has answered the last question."""

    async def get(self, topic: str, *, make: bool = False, fresh: bool = False) -> Route:
        """The topic's route; with `make` that of the brokers which would make it, with `fresh`
        what a nameserver says now, if one answers.

        Raises `NoRoute`, `NoNameserver`, `RequestRefused`.
        """
        route = None if fresh else self.known(topic, make=make)
        if route is not None:
            return route
        async with self._locks.setdefault(topic, trio.Lock()):
            route = None if fresh else self.known(topic, make=make)
            if route is not None:
                return route
            entry = self._entries.get(topic)
            if entry is None or entry.is_stale or fresh or (entry.uses_template and not make):
                return await self._refresh(topic, make, fresh=fresh)
            with trio.move_on_after(UNUSED_WAIT_S):
                return await self._refresh(topic, make)
            return entry.route  # nobody found it wrong: it was only not used

    def known(self, topic: str, *, make: bool = False) -> Route | None:
        """The same where nobody has to be asked first; else None."""
        entry = self._entries.get(topic)
        if entry is None or (entry.uses_template and not make):
            return None
        now = trio.current_time()
        if entry.is_stale:
            return entry.route if now < entry.held_until else None
        if now - entry.due_at >= UNUSED_S:
            return None
        if now >= entry.due_at:
            entry.due_at = now + AGAIN_S
            self._begin(self._renew, topic, make)
        return entry.route

    def distrust(self, topic: str, *, older_than_s: float = 0.0, gone: bool = False) -> None:
        """Ask again before the next use: a broker was not where the route said. With `gone` the
        topic may not exist any more, as a broker said; a nameserver that agrees is believed.

        A route that is younger than `older_than_s` stays.
        """
        entry = self._entries.get(topic)
        if entry is not None and trio.current_time() - entry.fetched_at >= older_than_s:
            entry.is_stale = True
            entry.is_gone = entry.is_gone or gone

    async def fetch(self, topic: str) -> TopicRouteData | None:
        """What a nameserver says now; None for an unknown topic.

        Raises `NoNameserver`, `RequestRefused`.
        """
        return await self._told(topic, lambda data: data)

    async def _told(self, topic: str, make: Callable[[TopicRouteData], T]) -> T | None:
        """What `make` makes of what a nameserver says now, unless it raises `ValueError`."""
        header = GetRouteRequest(topic=topic, rbNotify=True)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())

        def read(answer: Command) -> T | None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            found = TopicRouteData.decode(answer.body)
            if not found.queue_datas:
                raise ProtocolError(f"the route of topic {topic} names no queue")
            try:
                return make(found)
            except ValueError as exc:
                raise ProtocolError(f"the route of topic {topic} is invalid: {exc}") from exc

        also = (ResponseCode.TOPIC_NOT_EXIST,)
        return await self._nameservers.read(command, f"route of topic {topic}", read, also=also)

    async def _renew(self, topic: str, make: bool) -> None:
        try:
            async with self._locks.setdefault(topic, trio.Lock()):
                await self._refresh(topic, make)
        except RocketbedError as exc:
            self._world.log.info("client.route_not_renewed", topic=topic, error=str(exc))

    async def _refresh(self, topic: str, make: bool, *, fresh: bool = False) -> Route:
        old = self._entries.get(topic)
        if old is not None:
            old.due_at = trio.current_time() + AGAIN_S
        try:
            route = await self._ask(topic, make)
        except (NoNameserver, NoRoute, RequestRefused) as exc:
            self.has_nameserver = not isinstance(exc, NoNameserver)
            if old is None or (old.uses_template and not make):
                raise
            if isinstance(exc, NoRoute) and (fresh or old.is_gone):
                if old.is_gone:
                    del self._entries[topic]
                raise
            self._world.log.warning("client.route_kept", topic=topic, error=str(exc))
            old.held_until = trio.current_time() + WRONG_AGAIN_S
            return old.route
        self.has_nameserver = True
        now = trio.current_time()
        is_same = old is not None and old.route == route
        held_until = now + WRONG_AGAIN_S if is_same else now
        self._entries[topic] = _Entry(route, now, now + REFRESH_S, route.is_template, held_until)
        self._share(route.brokers)
        return route

    def move(self, broker_name: str, address: Address) -> None:
        """A nameserver says that this is the master of a broker now."""
        known = self._members.get(broker_name)
        if known is not None:
            others = {number: at for number, at in known.items() if number and at != address}
            self._share({broker_name: {MASTER_ID: address, **others}})
        self.moved.set()
        self.moved = trio.Event()

    def _share(self, found: dict[str, dict[int, Address]]) -> None:
        """Take where brokers are, which is the same for all topics, over into the other routes:
        else each of them would lead once to who was master before."""
        members = self._members
        moved = {name: own for name, own in found.items() if members.get(name) != own}
        members.update(moved)
        for entry in self._entries.values() if moved else ():
            known = entry.route.brokers
            if changed := {name: own for name, own in moved.items() if known.get(name, own) != own}:
                entry.route = entry.route.moved(changed)

    async def _ask(self, topic: str, make: bool) -> Route:
        route = await self._told(topic, partial(route_of, topic))
        if route is None and make:
            route = await self._told(DEFAULT_TOPIC, partial(route_of, topic, template=True))
        if route is not None:
            return route
        hint = " and no broker creates topics automatically" if make else ""
        raise NoRoute(f"topic {topic} does not exist{hint}: create it first")
