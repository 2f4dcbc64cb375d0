"""Read a live cluster's queues: their bounds, and their stored records.

Pulls return the records as they are in the log, so that rows are made of them as of files. An
unreachable broker is waited for, up to a limit: it may be restarting. The master is asked first,
then the member that its answers suggest.

Classic clusters have no confirmed offset that a client could ask for. A queue is therefore taken to
end where its shortest copy on the members that answer ends; an unreachable slave is not counted. If
the master is lost while a slave is unreachable, messages that only the master had may be lost after
they were read.
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
    before_that,
    reading,
    send_request,
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
"""Time for retries of a refusal in a queue where an earlier refusal lasted for the whole limit."""
PAUSE_MAX_S: Final = 1.0
REQUESTS: Final = 6
"""Number of consecutive requests without an answer that take the whole limit."""
SHORT: Final = 2.0
"""An attempt cut off by the limit is not blamed if it took at most this many times the longest
earlier attempt."""
PULL_BYTES: Final = 4 * 1024 * 1024
PULL_COUNT: Final = 4096
"""Messages requested in one pull; brokers give less by their own limits."""
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
"""Refusals of a member that serves no readers; another member may."""
PULL_OK: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


class WireError(PipelineError):
    """A cluster cannot be read; the text names the broker, the queue and the reason."""

    condition = Condition.CLUSTER_UNAVAILABLE


class Refused(WireError):
    """A broker refuses a request, for instance because a record is damaged."""

    condition = Condition.REFUSED

    @property
    def with_advice(self) -> "Refused":
        """Same error, with advice for reads with `failOnDataLoss`."""
        return Refused(f"{self}; failOnDataLoss=false goes on behind it")


class TopicGone(WireError):
    """The nameservers did not know the topic within the limit."""

    condition = Condition.UNKNOWN_TOPIC


LOG: Final = logging.getLogger("rocketbed.pipeline.wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPull:
    records: bytes
    """Stored records, back to back; empty if none was found."""
    next_offset: int
    first: int
    """First offset of the answering member."""
    end: int
    """Offset after its last message."""
    broker_id: int


class WireLog:
    """Reads queues. `async with WireLog("host:9876") as log: ...`"""

    def __init__(self, nameservers: str, *, limit_s: float = 30.0, anyone: bool = False) -> None:
        """`limit_s`: time that a broker, a nameserver or a topic may be missing; `anyone`: pull
        from another member, which may have less, if one does not answer."""
        self._session = Session(None, nameservers)
        self._limit_s = limit_s
        self._anyone = anyone
        self._reported: set[str] = set()
        """Topics whose unreadable queues were reported."""
        self._suggested: dict[MessageQueue, int] = {}
        self._chosen: dict[MessageQueue, int] = {}
        """Member to ask for each queue, whatever answers suggest."""
        self._silent: dict[MessageQueue, set[int]] = {}
        """Members that did not answer the last pulls, or serve no readers."""
        self._damaged: dict[MessageQueue, None] = {}
        """Queues with a message refused for the whole limit: later refusals get fewer retries."""

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
        """Return all topics that the nameservers know, system topics too, or those whose whole name
        matches; sorted. Raises `WireError`, `TopicGone` if none matched within the limit."""

        async def ask() -> list[str]:
            code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            listed = await self._session.nameservers.body(code, "list of topics", TopicList.decode)
            names = sorted(listed.topic_list)
            if not names:  # a name server that has just started learns topics broker by broker
                raise NoRoute("the name servers know no topic yet")
            if pattern is None:
                return names
            matching = [name for name in names if pattern.fullmatch(name)]
            if not matching:
                raise NoRoute(f"none of {len(names)} topics matches {pattern.pattern}")
            return matching

        return await self._patiently("list of topics", "", ask)

    async def brokers(self, names: Iterable[str], clusters: Iterable[str]) -> frozenset[str]:
        """Wait until brokers and clusters are registered; returns the names of all those brokers.
        Raises `WireError` after the limit."""

        async def ask() -> frozenset[str]:
            info = await self._session.nameservers.body(
                RequestCode.GET_BROKER_CLUSTER_INFO, "list of brokers", ClusterInfo.decode
            )
            members = info.cluster_addr_table
            for kind, requested, registered in (
                ("broker", names, info.broker_addr_table),
                ("cluster", clusters, members),
            ):
                if missing := sorted(set(requested) - set(registered)):
                    available = ", ".join(sorted(registered)) or "none"
                    raise NoBroker(f"no {kind} {missing[0]} is registered; there are {available}")
            return frozenset(names).union(*(members[cluster] for cluster in clusters))

        return await self._patiently("list of brokers", "", ask)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic. Raises `WireError`, `TopicGone`."""

        async def ask() -> tuple[MessageQueue, ...]:
            return self._readable(await self._session.routes.get(topic))

        return await self._patiently(f"route of topic {topic}", topic, ask)

    async def queues_now(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic; empty if the nameservers do not know it."""

        async def ask() -> tuple[MessageQueue, ...]:
            try:
                return self._readable(await self._session.routes.get(topic))
            except NoRoute:
                return ()

        return await self._patiently(f"route of topic {topic}", topic, ask)

    async def has_topic(self, topic: str) -> bool:
        """True if the nameservers know a topic now. Raises `WireError`."""

        async def ask() -> bool:
            return await self._session.routes.fetch(topic) is not None

        return await self._patiently(f"route of topic {topic}", topic, ask)

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the bounds of a queue. Raises `WireError`, `TopicGone`."""
        return (await self.bounds_of([queue]))[queue]

    async def bounds_of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        """Return the bounds of many queues, with few requests for each topic and broker."""
        places: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            places.setdefault((queue.topic, queue.broker_name), []).append(queue)
        bounds: dict[MessageQueue, QueueBounds] = {}
        silent: set[Address] = set()

        async def ask(own: list[MessageQueue]) -> None:
            label = describe(own[0]) if len(own) == 1 else f"the queues beside {describe(own[0])}"

            async def now() -> dict[MessageQueue, QueueBounds]:
                route = await self._session.routes.get(own[0].topic)
                others_s = min(ANSWER_S, self._limit_s / 2)
                return await bounds_now(self._session, route, own, others_s=others_s, silent=silent)

            bounds.update(await self._patiently(f"ends of {label}", own[0].topic, now))

        await together(ask, places.values())
        return bounds

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the first offset stored at or after a time. Raises `WireError`."""
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
                pulled = await self._pull(
                    queue, offset, count, at_master=at_master, answer_s=answer_s
                )
            except RequestRefused as exc:
                if exc.code in CLOSED and self._anyone:
                    is_passed = await self._pass_over(queue)
                    is_closed = is_closed or is_passed
                    if is_passed or is_away or not await self._has_master(queue):
                        raise NoBroker(str(exc)) from exc
                refused = None if is_closed else exc  # the master may have an undamaged copy
                raise
            except RemotingError as exc:
                is_away = True
                is_passed = self._anyone and await self._pass_over(queue)
                if isinstance(exc, RequestTimeout | ConnectionLost) and not is_passed:
                    answer_s *= 2  # megabytes take long on a slow connection
                raise
            if refused is not None and pulled.end <= offset:
                refusal, refused = refused, None
                raise refusal  # the member that refused is the only one with the message
            return pulled

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
        """Refresh a topic's route from the nameservers before its next use."""
        self._session.routes.distrust(topic, is_gone=True)

    def ask_master(self, queue: MessageQueue) -> None:
        """Ask the master next, whatever the last answer suggested."""
        self._suggested.pop(queue, None)
        self._chosen.pop(queue, None)

    def ask_member(self, queue: MessageQueue, broker_id: int) -> None:
        """Ask this member from now on, as long as it answers."""
        self._chosen[queue] = broker_id

    async def another(self, queue: MessageQueue, tried: Collection[int]) -> int | None:
        """Return a member that was not tried, the master first. Raises `WireError`, `TopicGone`."""

        async def ask() -> int | None:
            route = await self._session.routes.get(queue.topic)
            members = route.brokers.get(queue.broker_name, {})
            return min((one for one in members if one not in tried), default=None)

        return await self._patiently(f"members of {describe(queue)}", queue.topic, ask)

    async def pause(self, times: int) -> None:
        """Wait before a retry, longer with the number of tries."""
        await trio.sleep(min(PAUSE_S * 2**times, PAUSE_MAX_S))

    # --- inside

    def _readable(self, route: Route) -> tuple[MessageQueue, ...]:
        """Return the readable queues; warns of unreadable ones once a topic."""
        readable = {*route.readable}
        hidden = [one for one in route.ordered if one not in readable]
        if hidden and route.topic not in self._reported:
            self._reported.add(route.topic)
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
        label: str,
        topic: str,
        ask: Callable[[], Awaitable[T]],
        *,
        refused_s: float = math.inf,
    ) -> T:
        """Ask until there is an answer, or the limit, or `refused_s` for a refusal, is over. The
        error names the member that failed last, and the problems before it."""
        began = trio.current_time()
        deadline = began + self._limit_s
        pause_s = PAUSE_S
        troubles: list[str] = []
        TROUBLES.set(troubles)
        failure: Exception | None = None
        longest_s = 0.0
        """Duration of the longest attempt that the limit did not cut off."""
        timeout_s = max(ANSWER_S, self._limit_s / REQUESTS)
        while True:
            earlier_count, attempt_at = len(troubles), trio.current_time()
            TIMEOUT_S.set(timeout_s)
            try:
                with trio.fail_at(deadline):
                    return await ask()
            except (NoBroker, NoNameserver, NoRoute, RemotingError) as exc:
                failure = exc
            except RequestRefused as exc:
                if exc.code not in PASSING:
                    raise WireError(f"{label}: {exc}", Condition.REFUSED) from exc
                failure = exc
            except trio.TooSlowError as exc:
                if failure and trio.current_time() - attempt_at <= SHORT * longest_s:
                    del troubles[earlier_count:]  # it had too little time to mean anything
                else:
                    failure = (
                        exc if len(troubles) > earlier_count else NoNameserver(self._unanswered)
                    )
            except (ClientError, ProtocolError) as exc:
                raise WireError(f"{label}: {exc}") from exc
            longest_s = max(longest_s, trio.current_time() - attempt_at)
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
                raise kind(f"{label}: after {limit_s:g} s still: {reason}") from failure
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    @property
    def _unanswered(self) -> str:
        """Describe the nameservers that did not answer, when no member was asked yet."""
        silent = [f"{host}:{port}" for host, port in self._session.nameservers.unanswered]
        return f"no nameserver answered: no answer from {' and '.join(silent) or 'any'}"

    async def _member(self, queue: MessageQueue, *, at_master: bool = False) -> tuple[int, Address]:
        route = await self._session.routes.get(queue.topic)
        chosen = self._chosen.get(queue, self._suggested.get(queue, MASTER_ID))
        member = route.member(queue.broker_name, MASTER_ID if at_master else chosen)
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
        """Ask a member next that has not been silent, or the master again. True in the first
        case."""
        route = await self._session.routes.get(queue.topic)
        members, silent = route.brokers.get(queue.broker_name, {}), self._silent.get(queue, set())
        remaining = [one for one in members if one not in silent]
        if remaining:
            self.ask_member(queue, min(remaining))
        else:
            silent.clear()
        return bool(remaining)

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
            answer = await send_request(self._session, address, command, timeout_s=answer_s)
            if is_answered := answer.code in PULL_OK:
                with reading(address):
                    header_fields = PullMessageResponse.decode(answer.raw_fields)
        except RemotingError:
            self._note_silent(queue, broker_id)
            raise
        if answer.code in CLOSED:
            self._silent.setdefault(queue, set()).add(broker_id)
        else:
            self._silent.pop(queue, None)
        if not is_answered:
            peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
            raise RequestRefused(describe(queue), peer, answer.code, answer.remark)
        self._suggested[queue] = header_fields.suggestWhichBrokerId
        return RawPull(
            records=answer.body if answer.code == ResponseCode.SUCCESS else b"",
            next_offset=header_fields.nextBeginOffset,
            first=header_fields.minOffset,
            end=header_fields.maxOffset,
            broker_id=broker_id,
        )


def _is_gone(failure: Exception) -> bool:
    if isinstance(failure, RequestRefused):
        return failure.code == ResponseCode.TOPIC_NOT_EXIST
    return isinstance(failure, NoRoute)
