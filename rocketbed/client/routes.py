"""Routes of topics to brokers: a cache of the nameservers' answers (wire.md 3.6, 4.7).

A route is queried again when it is half a minute old, and used meanwhile, so that no send waits for
a nameserver while brokers are where the route says. A route that was reported wrong is queried
before its next use. If no nameserver answers, or one that has just started knows nothing yet, the
old route stays. Brokers' addresses are taken from the latest answer of any topic. An unknown topic
is sent to the brokers of `TBW102`, which create it at the first message if they are allowed to.
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
"""Most queues of a topic that is created by its first message (wire.md 4.1)."""
REFRESH_S: Final = 30.0
"""Age at which a route is queried again, seconds (wire.md 6.1)."""
AGAIN_S: Final = 5.0
"""Pause before the next query when no nameserver answered, seconds."""
WRONG_AGAIN_S: Final = 0.5
"""Pause before the next query when the answer was unchanged, seconds: many queues of a dead broker
share a query."""
UNUSED_S: Final = 5.0
"""A route that was due for a query and unused for this many seconds is queried before it is
used."""
UNUSED_WAIT_S: Final = 0.5
"""Longest wait for that query, seconds; then the old route is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Brokers and queues of a topic."""

    topic: str
    brokers: dict[str, dict[int, Address]]
    """Broker name -> broker id -> address; id 0 is the master."""
    writable: tuple[MessageQueue, ...]
    """Queues that accept messages now: with write permission and a master."""
    ordered: tuple[MessageQueue, ...]
    """Queues with write permission, with or without a master: the base of hash keys, so that a key
    keeps its queue while a master is away."""
    readable: tuple[MessageQueue, ...]
    is_template: bool = False
    """True if the topic does not exist and these are the brokers that may create it."""

    def master(self, broker_name: str) -> Address | None:
        """Return the address of a master, or None."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def moved(self, changed: dict[str, dict[int, Address]]) -> "Route":
        """Return the same queues with changed members of some brokers."""
        brokers = {**self.brokers, **changed}
        writable = tuple(queue for queue in self.ordered if MASTER_ID in brokers[queue.broker_name])
        return replace(self, brokers=brokers, writable=writable)

    def member(self, broker_name: str, broker_id: int) -> tuple[int, Address] | None:
        """Return id and address of a broker's member: this id, or if it is gone the next slave, or
        any."""
        members = self.brokers.get(broker_name, {})
        for candidate in (broker_id, broker_id + 1 if broker_id else broker_id, *sorted(members)):
            if candidate in members:
                return candidate, members[candidate]
        return None


def route_of(topic: str, data: TopicRouteData, *, template: bool = False) -> Route:
    """Build a route from a nameserver's answer, without members whose address cannot be used.

    Raises `ValueError` if that leaves none, and for an impossible number of queues.
    """
    brokers: dict[str, dict[int, Address]] = {}
    failure: ValueError | None = None
    for broker in data.broker_datas:
        for number, text in sorted(broker.broker_addrs.items()):
            try:
                brokers.setdefault(broker.broker_name, {})[number] = parse_address(text)
            except ValueError as exc:
                failure = exc
    brokers = {name: members for name, members in brokers.items() if members}
    if failure is not None and not brokers:
        raise failure
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
    """Time of the next background query."""
    uses_template: bool
    held_until: float
    """Time before which no query is sent, even if the route was reported wrong."""
    is_stale: bool = False
    """True if the route was reported wrong: query before the next use."""
    is_gone: bool = False
    """True if the topic may no longer exist."""
    is_kept: bool = False
    """True after a query without a new route; logged once, until there is one."""


class Routes:
    """The cache of routes."""

    def __init__(self, world: World, nameservers: Nameservers, begin: Begin) -> None:
        """`begin` starts a task that lives as long as the client."""
        self._world = world
        self._nameservers = nameservers
        self._begin = begin
        self._entries: dict[str, _Entry] = {}
        self._members: dict[str, dict[int, Address]] = {}
        """Broker name -> members, from the latest answer; the same as in every route."""
        self._locks: dict[str, trio.Lock] = {}
        self.moved = trio.Event()
        """Set, and replaced, when a nameserver reports another master."""
        self.has_nameserver = True
        """True if a nameserver has answered the last query."""

    async def get(self, topic: str, *, make: bool = False, fresh: bool = False) -> Route:
        """Return the topic's route; with `make` that of the brokers that would create it, with
        `fresh` a nameserver's current answer, if one answers.

        Raises `NoRoute`, `NoNameserver`, `RequestRefused`.
        """
        route = None if fresh else self.cached(topic, make=make)
        if route is not None:
            return route
        async with self._locks.setdefault(topic, trio.Lock()):
            route = None if fresh else self.cached(topic, make=make)
            if route is not None:
                return route
            entry = self._entries.get(topic)
            if entry is None or entry.is_stale or fresh or (entry.uses_template and not make):
                return await self._refresh(topic, make, fresh=fresh)
            with trio.move_on_after(UNUSED_WAIT_S):
                return await self._refresh(topic, make)
            return entry.route  # not reported wrong, only unused

    def cached(self, topic: str, *, make: bool = False) -> Route | None:
        """Return the route if no query is needed first; else None."""
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

    def distrust(self, topic: str, *, older_than_s: float = 0.0, is_gone: bool = False) -> bool:
        """Query before the next use, since a broker was not where the route said. With `is_gone` a
        broker said that the topic does not exist; a nameserver that agrees is then believed.

        A route younger than `older_than_s` seconds stays. Returns False for it, and without any.
        """
        entry = self._entries.get(topic)
        if entry is None or trio.current_time() - entry.fetched_at < older_than_s:
            return False
        entry.is_stale = True
        entry.is_gone = entry.is_gone or is_gone
        return True

    async def fetch(self, topic: str) -> TopicRouteData | None:
        """Return a nameserver's current answer; None for an unknown topic.

        Raises `NoNameserver`, `RequestRefused`.
        """
        return await self._query(topic, lambda data: data)

    async def _query(self, topic: str, make: Callable[[TopicRouteData], T]) -> T | None:
        """Return the result of `make` for a nameserver's current answer; an answer for which it
        raises `ValueError` is skipped."""
        header = GetRouteRequest(topic=topic, rbNotify=True)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())

        def read(answer: Command) -> T | None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            data = TopicRouteData.decode(answer.body)
            if not data.queue_datas:
                raise ProtocolError(f"the route of topic {topic} names no queue")
            try:
                return make(data)
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
            if not old.is_kept:
                old.is_kept = True
                is_away = isinstance(exc, NoRoute)
                cause = f"every broker of topic {topic} is gone" if is_away else str(exc)
                self._world.log.warning(
                    "client.route_kept", topic=topic, error=f"{cause}; its last route is kept"
                )
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
        """Record a nameserver's report that this is now the master of a broker."""
        members = self._members.get(broker_name)
        if members is not None:
            slaves = {number: at for number, at in members.items() if number and at != address}
            self._share({broker_name: {MASTER_ID: address, **slaves}})
        self.moved.set()
        self.moved = trio.Event()

    def _share(self, changes: dict[str, dict[int, Address]]) -> None:
        """Copy the members of brokers, which are the same for all topics, into the other routes;
        else each of them would still lead to the former master once."""
        members = self._members
        moved = {name: own for name, own in changes.items() if members.get(name) != own}
        members.update(moved)
        for entry in self._entries.values() if moved else ():
            current = entry.route.brokers
            if changed := {
                name: own for name, own in moved.items() if current.get(name, own) != own
            }:
                entry.route = entry.route.moved(changed)

    async def _ask(self, topic: str, make: bool) -> Route:
        route = await self._query(topic, partial(route_of, topic))
        if route is None and make:
            route = await self._query(DEFAULT_TOPIC, partial(route_of, topic, template=True))
        if route is not None:
            return route
        hint = " and no broker creates topics automatically" if make else ""
        raise NoRoute(f"topic {topic} does not exist{hint}: create it first")
