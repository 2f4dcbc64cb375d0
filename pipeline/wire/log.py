"""A live cluster's queues as a reader sees them: their ends, and their stored records.

Pulls answer with the records as they lie in the log, so that rows are made of them as of files. A
broker that is away is waited for, up to a limit: it may only be restarting. The master is asked
first, then whom its answers suggest.

Classic clusters have no confirmed offset that a client could ask for. A queue therefore counts as
long as its shortest copy on the members that answer; a slave that is away is not counted. If the
master is lost while a slave is away, what only the master had may be gone although it was read.
"""

import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import trio

from rocketbed.client.errors import ClientError, NoBroker, NoNameserver, NoRoute, RequestRefused
from rocketbed.client.routes import MASTER_ID, Route
from rocketbed.client.session import Session
from rocketbed.pipeline.errors import Condition, PipelineError
from rocketbed.pipeline.wire.questions import (
    QueueBounds,
    bounds_now,
    describe,
    number,
    together,
)
from rocketbed.pipeline.wire.troubles import (
    ANSWER_S,
    TIMEOUT_S,
    TROUBLES,
    asked,
    before_that,
    reading,
)
from rocketbed.remoting.errors import ConnectionLost, RemotingError, RequestTimeout
from rocketbed.wire.bodies import ClusterInfo, MessageQueue, TopicList
from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.command import RequestCode, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.headers import (
    PullMessageRequest,
    PullMessageResponse,
    SearchOffsetRequest,
)
from rocketbed.world.api import Address

T = TypeVar("T")

GROUP: Final = "rocketbed_pipeline_reader"
PAUSE_S: Final = 0.05
REFUSED_S: Final = 1.0
"""How long a refusal is doubted where another one of the queue lasted for the whole limit."""
PAUSE_MAX_S: Final = 1.0
REQUESTS: Final = 6
"""So many that nobody answers, one after the other, take the whole limit."""
SHORT: Final = 2.0
"""Times as long as any attempt before the last one may take and be cut off without blame."""
PULL_BYTES: Final = 4 * 1024 * 1024
PULL_COUNT: Final = 4096
"""What we ask for in one pull; brokers give less by their own limits."""
SUBSCRIPTION: Final = 0x4
PASSING: Final = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
        ResponseCode.TOPIC_NOT_EXIST,
    )
)
"""Refusals that may pass: a broker that has just started may not know its topics yet."""
CLOSED: Final = frozenset((ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION))
"""Refusals of a member that gives nothing to readers; another one may."""
PULL_OK: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


class WireError(PipelineError):
    """A cluster that cannot be read; the text says which broker, which queue and why."""

    condition = Condition.CLUSTER_UNAVAILABLE


class Refused(WireError):
    """A broker does not give what was asked of it, as where a record is damaged."""

    condition = Condition.REFUSED

    @property
    def with_advice(self) -> "Refused":
        """The same for who reads with `failOnDataLoss`."""
        return Refused(f"{self}; failOnDataLoss=false goes on behind it")


class TopicGone(WireError):
    """The nameservers do not know the topic, and did not come to know it within the limit."""

    condition = Condition.UNKNOWN_TOPIC


LOG: Final = logging.getLogger("rocketbed.pipeline.wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPull:
    records: bytes
    """Stored records, back to back; empty if none was found."""
    next_offset: int
    first: int
    """The first offset that the answering member has."""
    end: int
    """Behind its last one."""
    broker_id: int


class WireLog:
    """Reads queues. `async with WireLog("host:9876") as log: ...`"""

    def __init__(self, nameservers: str, *, limit_s: float = 30.0, anyone: bool = False) -> None:
        """`limit_s`: how long a broker, a nameserver or a topic may be away; `anyone`: what a
        member does not answer is pulled from another one, which may have less."""
        self._session = Session(None, nameservers)
        self._limit_s = limit_s
        self._anyone = anyone
        self._told: set[str] = set()
        """Topics of which queues that cannot be read were told."""
        self._suggested: dict[MessageQueue, int] = {}
        self._asked: dict[MessageQueue, int] = {}
        """Members that are asked, whatever answers suggest, as others have deleted more."""
        self._silent: dict[MessageQueue, set[int]] = {}
        """Members that did not answer the last pulls, or give nothing to readers."""
        self._damaged: dict[MessageQueue, None] = {}
        """Queues of which something was refused for the whole limit: they are tried shortly."""

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.__aexit__(kind, error, traceback)

    async def topics(self, pattern: re.Pattern[str] | None = None) -> list[str]:
        """All topics that the nameservers know, system topics too, or those whose whole name
        matches; sorted. Raises `WireError`, `TopicGone` when none came to match."""

        async def ask() -> list[str]:
            code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            known = await self._session.nameservers.body(code, "list of topics", TopicList.decode)
            names = sorted(known.topic_list)
            if not names:  # brokers tell a name server that has just started of theirs bit by bit
                raise NoRoute("the name servers know no topic yet")
            if pattern is None:
                return names
            found = [name for name in names if pattern.fullmatch(name)]
            if not found:
                raise NoRoute(f"none of {len(names)} topics matches {pattern.pattern}")
            return found

        return await self._patiently("list of topics", "", ask)

    async def brokers(self, names: Iterable[str], clusters: Iterable[str]) -> frozenset[str]:
        """These brokers and those of clusters, once all of them are registered. Raises `WireError`
        if some are not within the limit."""

        async def ask() -> frozenset[str]:
            info = await self._session.nameservers.body(
                RequestCode.GET_BROKER_CLUSTER_INFO, "list of brokers", ClusterInfo.decode
            )
            of = info.cluster_addr_table
            for kind, wanted, known in (
                ("broker", names, info.broker_addr_table),
                ("cluster", clusters, of),
            ):
                if strange := sorted(set(wanted) - set(known)):
                    there = ", ".join(sorted(known)) or "none"
                    raise NoBroker(f"no {kind} {strange[0]} is registered; there are {there}")
            return frozenset(names).union(*(of[cluster] for cluster in clusters))

        return await self._patiently("list of brokers", "", ask)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic that can be read. Raises `WireError`, `TopicGone`."""

        async def ask() -> tuple[MessageQueue, ...]:
            return self._readable(await self._session.routes.get(topic))

        return await self._patiently(f"route of topic {topic}", topic, ask)

    async def queues_now(self, topic: str) -> tuple[MessageQueue, ...]:
        """The same of a topic that may be gone already: none then."""

        async def ask() -> tuple[MessageQueue, ...]:
            try:
                return self._readable(await self._session.routes.get(topic))
            except NoRoute:
                return ()

        return await self._patiently(f"route of topic {topic}", topic, ask)

    async def has_topic(self, topic: str) -> bool:
        """Whether the nameservers know a topic now. Raises `WireError`."""

        async def ask() -> bool:
            return await self._session.routes.fetch(topic) is not None

        return await self._patiently(f"route of topic {topic}", topic, ask)

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Where a queue begins and ends. Raises `WireError`, `TopicGone`."""
        return (await self.bounds_of([queue]))[queue]

    async def bounds_of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        """The same of many, by few questions for each topic and broker, however many queues."""
        places: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            places.setdefault((queue.topic, queue.broker_name), []).append(queue)
        found: dict[MessageQueue, QueueBounds] = {}
        silent: set[Address] = set()

        async def ask(own: list[MessageQueue]) -> None:
            what = describe(own[0]) if len(own) == 1 else f"the queues beside {describe(own[0])}"

            async def now() -> dict[MessageQueue, QueueBounds]:
                route = await self._session.routes.get(own[0].topic)
                others_s = min(ANSWER_S, self._limit_s / 2)
                return await bounds_now(self._session, route, own, others_s=others_s, silent=silent)

            found.update(await self._patiently(f"ends of {what}", own[0].topic, now))

        await together(ask, places.values())
        return found

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The first offset that was stored at or after a time. Raises `WireError`."""
        header = SearchOffsetRequest(
            topic=queue.topic,
            queueId=queue.queue_id,
            timestamp=time_ms,
            boundaryType="LOWER",
            bname=queue.broker_name,
        )

        async def ask() -> int:
            broker_id, address = await self._member(queue)
            command = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
            try:
                return await number(self._session, queue, address, command)
            except RemotingError:
                self._note_silent(queue, broker_id)
                await self._pass_over(queue)
                raise

        return await self._patiently(f"offset by time of {describe(queue)}", queue.topic, ask)

    async def pull(self, queue: MessageQueue, offset: int, *, count: int = PULL_COUNT) -> RawPull:
        """Pull once, without waiting for new messages. Raises `WireError`, `TopicGone`."""
        refused: RequestRefused | None = None
        is_closed = is_away = False
        answer_s = min(ANSWER_S, self._limit_s / 4) if self._anyone else ANSWER_S

        async def ask() -> RawPull:
            nonlocal refused, is_closed, is_away, answer_s
            at_master = refused is not None
            try:
                found = await self._pull(
                    queue, offset, count, at_master=at_master, answer_s=answer_s
                )
            except RequestRefused as exc:
                if exc.code in CLOSED and self._anyone:
                    is_passed = await self._pass_over(queue)
                    is_closed = is_closed or is_passed
                    if is_passed or is_away or not await self._has_master(queue):
                        raise NoBroker(str(exc)) from exc
                refused = None if is_closed else exc  # the master may have it whole
                raise
            except RemotingError as exc:
                is_away = True
                is_passed = self._anyone and await self._pass_over(queue)
                if isinstance(exc, RequestTimeout | ConnectionLost) and not is_passed:
                    answer_s *= 2  # megabytes take long on a slow way
                raise
            if refused is not None and found.end <= offset:
                of_holder, refused = refused, None
                raise of_holder  # which alone has it, and is asked once more
            return found

        try:
            return await self._patiently(
                f"pull of {describe(queue)} at {offset}",
                queue.topic,
                ask,
                refused_s=REFUSED_S if queue in self._damaged else math.inf,
            )
        except Refused:
            self._damaged[queue] = None
            raise

    def distrust(self, topic: str) -> None:
        """Ask the nameservers for a topic's route again before it is used next."""
        self._session.routes.distrust(topic, is_gone=True)

    def ask_master(self, queue: MessageQueue) -> None:
        """Ask the master next, whatever the last answer suggested."""
        self._suggested.pop(queue, None)
        self._asked.pop(queue, None)

    def ask_member(self, queue: MessageQueue, broker_id: int) -> None:
        """Ask this member from now on, as long as it answers."""
        self._asked[queue] = broker_id

    async def another(self, queue: MessageQueue, tried: Collection[int]) -> int | None:
        """A member that was not tried, the master first. Raises `WireError`, `TopicGone`."""

        async def ask() -> int | None:
            route = await self._session.routes.get(queue.topic)
            members = route.brokers.get(queue.broker_name, {})
            return min((one for one in members if one not in tried), default=None)

        return await self._patiently(f"members of {describe(queue)}", queue.topic, ask)

    async def pause(self, times: int) -> None:
        """Wait before the same question is asked once more, the longer the more often."""
        await trio.sleep(min(PAUSE_S * 2**times, PAUSE_MAX_S))

    # --- inside

    def _readable(self, route: Route) -> tuple[MessageQueue, ...]:
        """Queues that can be read; of others it is told, once a topic."""
        readable = {*route.readable}
        hidden = [one for one in route.ordered if one not in readable]
        if hidden and route.topic not in self._told:
            self._told.add(route.topic)
            LOG.warning(
                "wire.not_readable topic %s: by its route %d queues, %s the first, may be"
                " written and not read: their messages are left out",
                route.topic,
                len(hidden),
                describe(hidden[0]),
            )
        return route.readable

    async def _patiently(
        self,
        what: str,
        topic: str,
        ask: Callable[[], Awaitable[T]],
        *,
        refused_s: float = math.inf,
    ) -> T:
        """Ask until there is an answer, or the limit is over, or that of a refusal. Who gave none
        is named then, and what was in the way before that."""
        began = trio.current_time()
        deadline = began + self._limit_s
        pause_s = PAUSE_S
        troubles: list[str] = []
        TROUBLES.set(troubles)
        failure: Exception | None = None
        longest_s = 0.0
        """An attempt's, of those that were not cut off by the limit."""
        timeout_s = max(ANSWER_S, self._limit_s / REQUESTS)
        while True:
            known, asked_at = len(troubles), trio.current_time()
            TIMEOUT_S.set(timeout_s)
            try:
                with trio.fail_at(deadline):
                    return await ask()
            except (NoBroker, NoNameserver, NoRoute, RemotingError) as exc:
                failure = exc
            except RequestRefused as exc:
                if exc.code not in PASSING:
                    raise WireError(f"{what}: {exc}", Condition.REFUSED) from exc
                failure = exc
            except trio.TooSlowError as exc:
                if failure and trio.current_time() - asked_at <= SHORT * longest_s:
                    del troubles[known:]  # too little time was left for it to tell anything
                else:
                    failure = exc if len(troubles) > known else NoNameserver(self._unanswered)
            except (ClientError, ProtocolError) as exc:
                raise WireError(f"{what}: {exc}") from exc
            longest_s = max(longest_s, trio.current_time() - asked_at)
            if isinstance(failure, RequestTimeout | ConnectionLost):
                timeout_s = min(timeout_s * 2, self._limit_s)
            if text := str(failure):
                troubles.append(text)
            self._session.routes.distrust(topic, is_gone=True)
            is_refused = (
                isinstance(failure, RequestRefused) and failure.code == ResponseCode.SYSTEM_ERROR
            )
            limit_s = min(self._limit_s, refused_s) if is_refused else self._limit_s
            if trio.current_time() + pause_s >= began + limit_s:
                kind = TopicGone if _is_gone(failure) else Refused if is_refused else WireError
                reason, earlier = troubles[-1], before_that(troubles)
                if kind is TopicGone and topic:
                    reason += ", or the brokers that have it are away"
                elif isinstance(failure, NoNameserver):
                    reason += "; check the addresses of endpoints, and the way there from here"
                if earlier:
                    reason += f"; before that: {earlier}"
                raise kind(f"{what}: after {limit_s:g} s still: {reason}") from failure
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    @property
    def _unanswered(self) -> str:
        """What is in the way where no member was asked: whoever asks for a route waits for it."""
        silent = [f"{host}:{port}" for host, port in self._session.nameservers.unanswered]
        return f"no nameserver answered: no answer from {' and '.join(silent) or 'any'}"

    async def _member(self, queue: MessageQueue, *, at_master: bool = False) -> tuple[int, Address]:
        route = await self._session.routes.get(queue.topic)
        wanted = self._asked.get(queue, self._suggested.get(queue, MASTER_ID))
        member = route.member(queue.broker_name, MASTER_ID if at_master else wanted)
        if member is None:
            raise NoBroker(f"no broker serves {describe(queue)} now")
        return member

    def _note_silent(self, queue: MessageQueue, broker_id: int) -> None:
        self.ask_master(queue)
        self._silent.setdefault(queue, set()).add(broker_id)

    async def _has_master(self, queue: MessageQueue) -> bool:
        route = await self._session.routes.get(queue.topic)
        return route.master(queue.broker_name) is not None

    async def _pass_over(self, queue: MessageQueue) -> bool:
        """Ask a member next that has not been silent, if there is one; else the master again."""
        route = await self._session.routes.get(queue.topic)
        members, silent = route.brokers.get(queue.broker_name, {}), self._silent.get(queue, set())
        others = [one for one in members if one not in silent]
        if others:
            self.ask_member(queue, min(others))
        else:
            silent.clear()
        return bool(others)

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, *, at_master: bool, answer_s: float
    ) -> RawPull:
        broker_id, address = await self._member(queue, at_master=at_master)
        header = PullMessageRequest(
            consumerGroup=GROUP,
            topic=queue.topic,
            queueId=queue.queue_id,
            queueOffset=offset,
            maxMsgNums=count,
            sysFlag=SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
            expressionType="TAG",
            maxMsgBytes=PULL_BYTES,
            bname=queue.broker_name,
        )
        command = request(RequestCode.PULL_MESSAGE, header.encode())
        try:
            answer = await asked(self._session, address, command, timeout_s=answer_s)
            if is_given := answer.code in PULL_OK:
                with reading(address):
                    found = PullMessageResponse.decode(answer.raw_fields)
        except RemotingError:
            self._note_silent(queue, broker_id)
            raise
        if answer.code in CLOSED:
            self._silent.setdefault(queue, set()).add(broker_id)
        else:
            self._silent.pop(queue, None)
        if not is_given:
            peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
            raise RequestRefused(describe(queue), peer, answer.code, answer.remark)
        self._suggested[queue] = found.suggestWhichBrokerId
        return RawPull(
            records=answer.body if answer.code == ResponseCode.SUCCESS else b"",
            next_offset=found.nextBeginOffset,
            first=found.minOffset,
            end=found.maxOffset,
            broker_id=broker_id,
        )


def _is_gone(failure: Exception) -> bool:
    if isinstance(failure, RequestRefused):
        return failure.code == ResponseCode.TOPIC_NOT_EXIST
    return isinstance(failure, NoRoute)
