"""Clients of a test: every attempt and every message goes into the history.

A send is one attempt of the real producer, never retried inside it, so that a second copy is
visible as such; `retry=True` makes further attempts, each with a body of its own, until one is
acknowledged.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgpack
import trio

from rocketbed.chaos.evidence.history import UNKNOWN, Function
from rocketbed.chaos.evidence.history import Outcome as Said
from rocketbed.chaos.evidence.workload import BODY_SIZE_MIN, Writer, decode_body, sign_body
from rocketbed.chaos.pytest_plugin.errors import NotRead, NotSent, TestingError
from rocketbed.chaos.run.load import ClientFailure, begin_send, finish_sends
from rocketbed.client.consumer import Consumer
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome
from rocketbed.client.producer import Producer

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage

TIMEOUT_S: Final = 30.0
"""Less than the budget of a test, so that the error with the reason comes first."""
PAUSE_S: Final = 0.05
IN_FLIGHT: Final = 8
POLL_S: Final = 0.2
SHOWN: Final = 5
Value = Any
"""An int, text, bytes, float, bool, None, or a tuple of those."""


class TopicProducer:
    """Sends values to one topic. Made by `cluster.producer(topic)`."""

    def __init__(self, stage: "Stage", producer: Producer, topic: str) -> None:
        self.client = producer
        """The real producer; its own sends are not in the history."""
        self.topic = topic
        self._stage = stage
        self._process = next(stage.control.processes)
        self._sequence = 0

    async def send(
        self,
        value: Value,
        *,
        order_key: str | None = None,
        tag: str | None = None,
        retry: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Outcome:
        """Send one value. Return the outcome: `Sent`, `Refused` or `Unknown`.

        With `retry` it is attempted again until it is acknowledged as safe as the cluster promises;
        raises `NotSent` after `timeout_s`.
        """
        self._sequence += 1
        operation = next(self._stage.control.operations), self._process, self._sequence
        outcome: Outcome | None = None
        waits = self._stage.script.waits
        waits[operation] = lambda: f"{value!r} is not acknowledged: {_show(outcome)}"
        with trio.move_on_after(timeout_s if retry else math.inf), _ending(waits, operation):
            for attempt in count():
                writer = Writer(next(self._stage.control.values), *operation)
                message = Message(
                    self.topic, wrap(writer, value), tag=tag, keys=(f"v{writer.value}",)
                )
                outcome, is_safe = await self._attempt(message, writer, attempt, order_key)
                if is_safe or not retry:
                    return outcome
                await trio.sleep(PAUSE_S * (1 + min(attempt, 9)))
        raise NotSent(
            f"{value!r} was not acknowledged in {timeout_s:g} s; the last attempt ended:"
            f" {_show(outcome)}; {self._stage.outlook()}"
        )

    async def send_all(
        self,
        values: Iterable[Value],
        *,
        retry: bool = False,
        in_flight: int = IN_FLIGHT,
        order_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Outcome]:
        """Send values, some at a time (one after the other with an order key). Return all outcomes.

        Raises `NotSent` if one is not acknowledged as safe as the cluster promises; with `retry` as
        soon as one was not for `timeout_s`.
        """
        pending = list(values)
        await trio.lowlevel.checkpoint()  # there may be none
        outcomes: list[Outcome | None] = [None] * len(pending)
        failures: list[str] = []
        limit = trio.CapacityLimiter(1 if order_key is not None else in_flight)

        async def send_one(place: int) -> None:
            try:
                outcome = await self.send(
                    pending[place], order_key=order_key, retry=retry, timeout_s=timeout_s
                )
                outcomes[place] = outcome
                if not getattr(outcome, "is_safe", False):
                    failures.append(f"{pending[place]!r}: {_show(outcome)}")
            except NotSent as error:
                failures.append(str(error))
                nursery.cancel_scope.cancel()
            finally:
                limit.release_on_behalf_of(place)

        async with trio.open_nursery() as nursery:
            for place in range(len(pending)):
                await limit.acquire_on_behalf_of(place)
                nursery.start_soon(send_one, place)
        if failures and retry:
            done = len(pending) - outcomes.count(None)
            raise NotSent(f"{done} of {len(pending)} values were acknowledged; {failures[0]}")
        if failures:
            first_failures = "; ".join(failures[:SHOWN])
            more = f"; and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
            raise NotSent(
                f"{len(failures)} of {len(pending)} values were not acknowledged:"
                f" {first_failures}{more}"
            )
        return [outcome for outcome in outcomes if outcome is not None]

    async def _attempt(
        self, message: Message, writer: Writer, attempt: int, order_key: str | None
    ) -> tuple[Outcome, bool]:
        """Make one attempt. Return its outcome, and whether it was acknowledged as safe as the
        cluster promises."""
        control, history = self._stage.control, self._stage.backend.history
        row = begin_send(history, writer, message, attempt)
        outcome = await self.client.send(message, order_key=order_key)
        result = finish_sends(outcome, [row])
        control.counts[result.name.lower()] += 1
        if result is Said.OK and len(control.keys) < 60:
            control.keys.append((self.topic, message.keys[0], writer.value))
        return outcome, result is Said.OK


class TopicConsumer:
    """Reads one topic as a member of a group. Made by `cluster.consumer(topic, group=...)`."""

    def __init__(self, stage: "Stage", consumer: Consumer, topic: str, group: int) -> None:
        self.client = consumer
        """The real consumer; its own reads are not in the history."""
        self.topic = topic
        self.messages: list[Received] = []
        """All messages that were read, in order."""
        self._stage = stage
        self._group = group
        self._process = next(stage.control.processes)

    @property
    def values(self) -> list[Value]:
        """The values of all messages that were read, in order."""
        return [unwrap(message.body) for message in self.messages]

    async def read(self, timeout_s: float = 1.0) -> list[Value]:
        """Return the values of the next messages; none if none came in time."""
        messages = await self.client.poll(timeout_s=timeout_s)
        for message in messages if self._is_recorded else ():
            self._stage.reading.note(Function.DELIVER, self._process, message, self._group, UNKNOWN)
        self.messages += messages
        return [unwrap(message.body) for message in messages]

    async def read_all(self, *, timeout_s: float = TIMEOUT_S) -> set[Value]:
        """Read every queue to its current end, and commit. Return all values so far. Of a group
        with several members each reads its own queues.

        Continues when a broker does not answer. Raises `NotRead` after `timeout_s`.
        """
        reason = "nothing was read"
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    reason = await self._unread()
                    while reason:
                        await self.read(POLL_S)
                        reason = await self._unread()
                    await self.commit()
                    return set(self.values)
                except ClientFailure as error:
                    reason = str(error)
                await trio.sleep(PAUSE_S)
        raise NotRead(f"{self.topic} was not read completely in {timeout_s:g} s: {reason}")

    async def commit(self) -> None:
        """Store the group's positions. Raises `ClientError`, `RemotingError`."""
        if self._is_recorded:
            await self._stage.reading.commit(self.client, self._process, self._group)
        else:
            await self.client.commit()

    @property
    def _is_recorded(self) -> bool:
        return self.topic in self._stage.topics

    async def _unread(self) -> str:
        """Return which queue has more than was read; empty if none has."""
        for queue, position in self.client.positions().items():
            end = await self.client.offsets.max_offset(queue)
            if position < end:
                return f"queue {queue.queue_id} was read to {position} of {end}"
        return ""


@contextmanager
def _ending(waits: dict[Any, Any], operation: object) -> Iterator[None]:
    try:
        yield
    finally:
        del waits[operation]


def _show(outcome: Outcome | None) -> str:
    if outcome is None:
        return "no attempt finished"
    reason = getattr(outcome, "reason", "") or getattr(outcome, "status", "")
    return f"{type(outcome).__name__} ({reason})"


def wrap(writer: Writer, value: Value) -> bytes:
    """Return the body of one attempt: the head by which checkers tell copies apart, then the value.

    Raises `TestingError` for a value that no body can hold.
    """
    try:
        return sign_body(writer, msgpack.packb(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise TestingError(
            f"{value!r} cannot be sent: a value must be a number, a string, bytes,"
            f" or a tuple of those ({error})"
        ) from None


def unwrap(body: bytes) -> Value:
    """Return the value of a body; the bytes themselves if another program wrote the body."""
    if decode_body(body) is None:
        return body
    try:
        return msgpack.unpackb(body[BODY_SIZE_MIN:], use_list=False, strict_map_key=False)
    except ValueError:
        return body
