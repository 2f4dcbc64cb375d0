"""Handing messages to a function as they come; those that it cannot handle are delivered again.

A consumer sends such a message back to the broker that it came from (36), which delivers it to the
group again later, or finally moves it to the dead letters (wire.md 4.9). If the broker does not
accept it, as with a message of a batch, the consumer sends a copy to the retry topic, as Java's do;
if that fails too, the function is called again here.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from inspect import isawaitable
from itertools import count
from typing import Final

import trio

from rocketbed.client.errors import ClientError, MissingLibrary, NoBroker, RequestRefused
from rocketbed.client.inbox import Inbox
from rocketbed.client.messages import Received
from rocketbed.client.outcome import STATUSES
from rocketbed.client.progress import POLLER, SEEN, at_once
from rocketbed.client.pulls import describe
from rocketbed.client.routes import DEFAULT_TOPIC
from rocketbed.client.session import Session
from rocketbed.client.tracing import Tracing
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.headers import SendBackRequest, SendMessageV2Request
from rocketbed.wire.properties import DELAY, RETRY_TOPIC, encode_properties

TIMEOUT_S: Final = 5.0
AGAIN_S: Final = 5.0
"""Pause, seconds, before a message that could not be sent back is handled again."""
PAUSE_S: Final = 1.0
"""Pause of a worker after a broker refused to serve a queue, seconds."""
WORKERS: Final = 20
RETRIES: Final = 16
HANDLER_S: Final = 15 * 60.0
"""Java's default time for handling a message, seconds."""
FIRST_LEVEL: Final = 3
"""Delay level of the first retry; each further retry adds one."""

Handler = Callable[[Received], Awaitable[object]]
Begun = Callable[[], None]
Caller = Callable[[Received, Begun], Awaitable[None]]
"""Calls a program's function, wherever it runs, and reports when it begins, because its timeout
counts from then."""


def retry_topic(group: str) -> str:
    """Return the topic from which a group's messages are delivered again."""
    return f"%RETRY%{group}"


async def called(handler: Handler, message: Received) -> None:
    """Call a function, which may be a plain one, and await its result if possible."""
    result: object = handler(message)
    if isawaitable(result):
        await result


def here(handler: Handler) -> Caller:
    """Return a caller for a function that runs in this task."""

    async def call(message: Received, begun: Begun) -> None:
        begun()
        await called(handler, message)

    return call


class Listener:
    """Workers that handle one message each at a time."""

    def __init__(
        self,
        session: Session,
        group: str,
        call: Caller,
        inbox: Inbox,
        is_ours: Callable[[MessageQueue], bool],
        *,
        max_retries: int,
        timeout_s: float,
        is_ordered: bool,
        is_broadcast: bool,
        tracing: Tracing | None,
    ) -> None:
        """`is_ours` tells if a queue is still read here; otherwise another member gets its
        messages."""
        self._session = session
        self._group = group
        self._caller = call
        self._inbox = inbox
        self._is_ours = is_ours
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._is_ordered = is_ordered
        self._is_broadcast = is_broadcast
        self._tracing = tracing
        self._is_stopping = False
        self._waiting: dict[trio.CancelScope, Received | None] = {}
        """Scopes of workers that have no message, or whose function has not begun."""
        self._begun: dict[MessageQueue, int] = {}
        """Highest offset of each queue whose function has begun."""

    async def run(self, workers: int) -> None:
        """Handle messages until `stop`, or until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(self._work)

    def stop(self) -> None:
        """Let `run` return once the messages in hand are handled."""
        self._is_stopping = True
        for scope, message in list(self._waiting.items()):
            # A message below one that was begun is handled too, or the latter would be delivered
            # again.
            if message is None or message.queue_offset > self._begun.get(message.queue, -1):
                scope.cancel()

    async def _work(self) -> None:
        POLLER.set(None)  # each worker is its own poller, and so are tasks that a function starts
        SEEN.set(at_once)
        while True:
            message: Received | None = None
            with trio.CancelScope() as scope:
                self._waiting[scope] = None
                if self._is_stopping:  # the message handled last still counts as finished
                    scope.cancel()
                try:
                    self._inbox.finish_own()
                    message = await self._inbox.message()
                except (RequestRefused, ProtocolError, MissingLibrary) as exc:
                    self._session.world.log.warning("client.not_served", error=str(exc))
                    await trio.sleep(PAUSE_S)
                finally:
                    del self._waiting[scope]
            if message is not None:
                try:
                    if not await self._handle(message):
                        self._inbox.give_back(message)
                except BaseException:  # cancelled: another listener may take the message
                    self._inbox.give_back(message)
                    raise
            elif self._is_stopping:
                return

    async def _handle(self, message: Received) -> bool:
        """Call the function until it or the group has taken the message. Returns False if `stop`
        came before the function began."""
        log = self._session.world.log
        is_again_here = self._is_ordered or self._is_broadcast
        for number in count(1):
            tried = message
            if is_again_here and number > 1:  # count a local retry as a delivery, as Java does
                times = message.reconsume_times + number - 1
                tried = replace(message, reconsume_times=times)
            try:
                return await self._call(tried)
            except Exception as exc:  # whatever the program raises: the message is delivered again
                reason = f"{type(exc).__name__}: {exc}"
            log.warning("client.not_handled", message=message.message_id, reason=reason)
            if not self._is_ours(message.queue):
                self._inbox.finish_own(is_left=True)
                return True
            if is_again_here and self._is_stopping:
                return False
            if is_again_here and number <= self._max_retries:
                await trio.sleep(PAUSE_S)
                continue
            if self._is_broadcast:
                log.warning("client.passed_over", message=message.message_id, tries=number)
                return True
            try:
                await self._put_back(message)
                return True
            except (ClientError, RemotingError) as exc:
                log.warning("client.not_put_back", message=message.message_id, error=str(exc))
            if self._is_stopping:
                return False
            await trio.sleep(AGAIN_S)
        raise AssertionError("it counts for ever")

    async def _call(self, message: Received) -> bool:
        """Call the function once; False if `stop` came before it began. Raises its exceptions, and
        `TimeoutError` when it takes too long."""

        def begun() -> None:
            self._waiting.pop(scope, None)
            before = self._begun.get(message.queue, -1)
            self._begun[message.queue] = max(before, message.queue_offset)
            scope.deadline = trio.current_time() + self._timeout_s

        with trio.CancelScope() as scope:
            self._waiting[scope] = message
            try:
                if self._tracing is None:
                    await self._caller(message, begun)
                else:
                    with self._tracing.handling(message, self._group):
                        await self._caller(message, begun)
            finally:
                self._waiting.pop(scope, None)
        if scope.cancelled_caught and trio.current_time() >= scope.deadline:
            raise TimeoutError(f"not done after {self._timeout_s:g} s (timeout_s)")
        return not scope.cancelled_caught

    async def _put_back(self, message: Received) -> None:
        """Send a message back to its broker. Raises `ClientError`, `RemotingError`: then only this
        client has it."""
        queue, ask = message.queue, self._session.ask
        address = (await self._session.routes.get(message.topic)).master(queue.broker_name)
        if address is None:
            raise NoBroker(f"{describe(queue)} has no master now")
        header = SendBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delayLevel=-1 if self._is_ordered else 0,
            originMsgId=message.message_id,  # its offset may since hold another message
            originTopic=message.topic,
            maxReconsumeTimes=self._max_retries,
            bname=queue.broker_name,
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        answer = await ask(address, command, timeout_s=TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS:
            if answer.remark:  # from rocketbed: accepted, but disk or slave are late
                log, message_id = self._session.world.log, message.message_id
                log.warning("client.put_back_late", message=message_id, remark=answer.remark)
            return
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # the broker no longer leads
            self._session.routes.distrust(message.topic)
            peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
            raise RequestRefused("message put back", peer, answer.code, answer.remark)
        answer = await ask(address, self._copy(message), timeout_s=TIMEOUT_S)
        if answer.code not in STATUSES:
            peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
            action = f"message {message.message_id} to {retry_topic(self._group)}"
            raise RequestRefused(action, peer, answer.code, answer.remark)

    def _copy(self, message: Received) -> Command:
        """Return a send of the same message to the group's retry topic."""
        properties = dict(message.properties)
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties[DELAY] = str(FIRST_LEVEL + message.reconsume_times)
        limit = self._max_retries
        header = SendMessageV2Request(
            a=self._group,
            b=retry_topic(self._group),
            c=DEFAULT_TOPIC,
            d=1,
            e=-1,
            f=0,
            g=message.born_ms,
            h=message.flag,
            i=encode_properties(properties),
            j=limit + 1 if self._is_ordered else message.reconsume_times + 1,
            k=False,
            l=limit,
            m=False,
            n=message.queue.broker_name,
        )
        return request(RequestCode.SEND_MESSAGE_V2, header.encode(), message.body)
