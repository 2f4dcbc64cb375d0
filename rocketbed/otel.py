"""Spans of OpenTelemetry for sends and for messages that a listener handles (extra `otel`).

    producer = Producer(nameservers="host:9876", tracing=OpenTelemetry())

Names and attributes are those of the semantic conventions for messaging, with RocketMQ's own. The
context travels in the messages' properties (`traceparent`), as with Java's instrumentation, so that
the span of handling a message is a child of its send. `context_of` is for programs that poll.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_tracer
from opentelemetry.util.types import AttributeValue

from rocketbed import __version__
from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome, Sent

__all__ = ["OpenTelemetry", "context_of"]


def context_of(message: Received) -> Context:
    """Return the context in which a message was sent; the current one if the sender stored none."""
    return propagate.extract(message.properties)


class _Sending:
    def __init__(self, span: Span) -> None:
        self._span = span
        self.properties: dict[str, str] = {}
        propagate.inject(self.properties)

    def ended(self, outcome: Outcome) -> None:
        self._span.set_attribute("messaging.message.id", outcome.message_id)
        if isinstance(outcome, Sent):
            self._span.set_attribute(
                "messaging.destination.partition.id", str(outcome.queue.queue_id)
            )
            if outcome.is_safe:
                return
            reason = outcome.status.name
        else:
            reason = outcome.reason
        self._span.set_attribute("error.type", _error_type(outcome))
        self._span.set_status(StatusCode.ERROR, reason)


class OpenTelemetry:
    """Spans by a tracer of the given provider, or of the program's own."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("rocketbed", __version__, provider)

    @contextmanager
    def sending(self, messages: Sequence[Message], group: str) -> Iterator[_Sending]:
        """Open a span `send TOPIC`, until its outcome is known."""
        first = messages[0]
        attributes = {
            **_common("send", "send", first.topic),
            **_rocketmq(first.tag, first.keys),
            "messaging.message.body.size": sum(len(message.body) for message in messages),
        }
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        if first.delay_level:
            attributes["messaging.rocketmq.message.delay_time_level"] = first.delay_level
        attributes["messaging.rocketmq.message.type"] = "delay" if first.delay_level else "normal"
        with self._tracer.start_as_current_span(
            f"send {first.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            yield _Sending(span)

    @contextmanager
    def handling(self, message: Received, group: str) -> Iterator[None]:
        """Open a span `process TOPIC`, a child of the span that sent the message."""
        attributes = {
            **_common("process", "process", message.topic),
            **_rocketmq(message.tag, message.keys),
            "messaging.consumer.group.name": group,
            "messaging.destination.partition.id": str(message.queue.queue_id),
            "messaging.message.id": message.message_id,
            "messaging.message.body.size": len(message.body),
        }
        sender = attach(context_of(message))  # with other values of the sender's context, too
        try:
            with self._tracer.start_as_current_span(
                f"process {message.topic}", kind=SpanKind.CONSUMER, attributes=attributes
            ) as span:
                try:
                    yield
                except BaseException as exc:
                    span.set_attribute("error.type", type(exc).__qualname__)
                    raise
        finally:
            detach(sender)


def _common(name: str, kind: str, topic: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _rocketmq(tag: str | None, keys: Sequence[str]) -> Mapping[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if tag:
        attributes["messaging.rocketmq.message.tag"] = tag
    if keys:
        attributes["messaging.rocketmq.message.keys"] = tuple(keys)
    return attributes


def _error_type(outcome: Outcome) -> str:
    if isinstance(outcome, Sent):
        return outcome.status.name
    return type(outcome).__name__ if outcome.code is None else str(outcome.code)
