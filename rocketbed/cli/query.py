"""`rocketbed query`: find messages by id or key. Exits with 1 without a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rocketbed.cli.client import (
    Moment,
    body_text,
    json_option,
    message_line,
    message_row,
    nameserver_option,
    queue_text,
    run,
    show,
    show_json,
    time_text,
)

if TYPE_CHECKING:
    from rocketbed.client.messages import Received

EXIT_NOT_FOUND: Final = 1
FOREVER_MS: Final = 2**63 - 1


@click.command()
@nameserver_option
@click.option("-t", "--topic", help="Topic; not needed with an offset message id.")
@click.option(
    "--id",
    "message_id",
    help="Offset message id (assigned by the broker); with --topic also the producer's unique id.",
)
@click.option("--key", help="A message key that the producer set.")
@click.option("--unique", help="The producer's unique id; shows every stored copy of the message.")
@click.option(
    "--begin", "begin_ms", type=Moment(), default=0, help="With --key: stored at or after."
)
@click.option(
    "--end", "end_ms", type=Moment(), default=FOREVER_MS, help="With --key: stored at or before."
)
@click.option("--limit", type=click.IntRange(1, 64), default=64, show_default=True)
@json_option
def query(
    nameservers: str,
    topic: str | None,
    message_id: str | None,
    key: str | None,
    unique: str | None,
    begin_ms: int,
    end_ms: int,
    limit: int,
    as_json: bool,
) -> int:
    """Find messages by id or key."""
    from rocketbed.client.admin import Admin

    if sum(item is not None for item in (message_id, key, unique)) != 1:
        raise click.UsageError("give one of --id, --key and --unique")
    if message_id is None and topic is None:
        raise click.UsageError("--key and --unique need --topic")

    async def main() -> list[Received]:
        async with Admin(nameservers=nameservers) as admin:
            if message_id is not None:
                return [await admin.message(message_id, topic)]
            assert topic is not None
            if unique is not None:
                return await admin.messages_by_unique_key(topic, unique)
            assert key is not None
            return await admin.messages_by_key(
                topic, key, count=limit, begin_ms=begin_ms, end_ms=end_ms
            )

    messages = run(main)
    if not messages:
        click.echo(f"rocketbed: no message in topic {topic} has {key or unique}", err=True)
        return EXIT_NOT_FOUND
    for message in messages:
        if as_json:
            show_json(message_row(message))
        elif message_id is not None:
            show(_details(message))
        else:
            show([message_line(message)])
    return 0


def _details(message: Received) -> list[str]:
    rows = [
        ("topic", message.topic),
        ("queue", f"{queue_text(message.queue)}, offset {message.queue_offset}"),
        ("id", message.message_id),
        ("broker's id", message.offset_id),
        ("stored", f"{time_text(message.stored_ms)}, {message.size} bytes"),
        ("born", f"{time_text(message.born_ms)} at {message.born_host[0]}:{message.born_host[1]}"),
        ("tag", message.tag or "-"),
        ("keys", " ".join(message.keys) or "-"),
        *((f"property {name}", text) for name, text in sorted(message.properties.items())),
        ("body", body_text(message.body)),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]
