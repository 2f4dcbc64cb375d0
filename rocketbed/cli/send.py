"""`rocketbed send`: send messages and print the outcome of each.

Exits with 0 when every message was sent, 1 when one was refused, 2 when the outcome of one is
unknown. A message stored with a weaker guarantee than configured counts as sent; its line shows the
status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from rocketbed.cli.client import (
    json_option,
    nameserver_option,
    parse_queue,
    queue_text,
    run,
    show,
    show_json,
)

if TYPE_CHECKING:
    from rocketbed.client.messages import Message
    from rocketbed.client.outcome import Outcome
    from rocketbed.client.producer import Producer
    from rocketbed.wire.bodies import MessageQueue

EXIT_REFUSED: Final = 1
EXIT_UNKNOWN: Final = 2


@click.command()
@nameserver_option
@click.option(
    "-t", "--topic", required=True, help="Topic; created on first use if the broker allows it."
)
@click.option("--body", help="Text of the message; default: the body is read from standard input.")
@click.option("--lines", is_flag=True, help="Send each line of standard input as a message.")
@click.option("--key", "keys", multiple=True, help="A message key; repeatable.")
@click.option("--tag", help="Tag by which consumers filter.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=TEXT",
    help="A message property; repeatable.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(min=0),
    default=0,
    help="Deliver it later: level 1 is 1 s, 2 is 5 s, ..., 18 is 2 h.",
)
@click.option("--queue", metavar="[BROKER/]ID", help="Send to this queue.")
@click.option("--order-key", help="Send to the queue that this key hashes to.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send it this many times.")
@click.option("--group", default="rocketbed_send", show_default=True, help="Producer group.")
@click.option("--timeout", "timeout_s", type=float, default=3.0, show_default=True, help="Seconds.")
@json_option
def send(
    nameservers: str,
    topic: str,
    body: str | None,
    lines: bool,
    keys: tuple[str, ...],
    tag: str | None,
    properties: tuple[str, ...],
    delay_level: int,
    queue: str | None,
    order_key: str | None,
    count: int,
    group: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Send messages to a topic."""
    from rocketbed.client.messages import Message
    from rocketbed.client.producer import Producer

    if body is not None and lines:
        raise click.UsageError("--lines reads standard input and cannot be combined with --body")
    bodies = _bodies(body, lines)
    texts = dict(_pair(item) for item in properties)
    messages = [
        Message(topic, item, tag=tag, keys=keys, properties=texts, delay_level=delay_level)
        for item in bodies
        for _ in range(count)
    ]

    async def main() -> int:
        worst = 0
        async with Producer(nameservers=nameservers, group=group, timeout_s=timeout_s) as producer:
            target = None
            if queue is not None:
                target = parse_queue(queue, await producer.queues(topic))
            async for outcome in _send_all(producer, messages, target, order_key):
                worst = max(worst, _exit_code(outcome))
                if as_json:
                    show_json(outcome_row(outcome))
                else:
                    show([outcome_line(outcome)])
        return worst

    return run(main)


async def _send_all(
    producer: Producer, messages: list[Message], queue: MessageQueue | None, order_key: str | None
) -> AsyncIterator[Outcome]:
    for message in messages:
        yield await producer.send(message, queue=queue, order_key=order_key)


def _bodies(body: str | None, lines: bool) -> list[bytes]:
    if body is not None:
        return [os.fsencode(body)]  # the bytes that were typed, also those that are not UTF-8
    data = sys.stdin.buffer.read()
    bodies = [line for line in data.splitlines() if line] if lines else [data]
    if not any(bodies):
        raise click.UsageError("nothing to send: give --body, or the message on standard input")
    return bodies


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--property {text}: expected NAME=TEXT")
    return name, value


def _exit_code(outcome: Outcome) -> int:
    from rocketbed.client.outcome import Refused, Unknown

    if isinstance(outcome, Unknown):
        return EXIT_UNKNOWN
    return EXIT_REFUSED if isinstance(outcome, Refused) else 0


def outcome_line(outcome: Outcome) -> str:
    """Return one line for an outcome."""
    from rocketbed.client.outcome import Sent

    if isinstance(outcome, Sent):
        double = (
            "  (an earlier attempt may have stored a duplicate)" if outcome.may_be_double else ""
        )
        return (
            f"sent     {outcome.message_id}  {queue_text(outcome.queue)} {outcome.queue_offset}"
            f"  {outcome.status.name}  {outcome.offset_id or '-'}{double}"
        )
    return f"{type(outcome).__name__.lower():<8} {outcome.message_id}  {outcome.reason}"


def outcome_row(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as JSON."""
    from rocketbed.client.outcome import Sent

    row: dict[str, object] = {"outcome": type(outcome).__name__.lower()}
    if not isinstance(outcome, Sent):
        return {**row, **asdict(outcome)}
    return {
        **row,
        "sendStatus": outcome.status.name,
        "msgId": outcome.message_id,
        "offsetMsgId": outcome.offset_id,
        "brokerName": outcome.queue.broker_name,
        "queueId": outcome.queue.queue_id,
        "queueOffset": outcome.queue_offset,
        "attempts": outcome.attempts,
        "mayBeDouble": outcome.may_be_double,
    }
