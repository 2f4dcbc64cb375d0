"""Common parts of the client commands: options, running async code, printing messages and times."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import trio

from rocketbed.client.errors import BadMessage, NoNameserver

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.client.group_status import GroupStatus
    from rocketbed.client.messages import Received
    from rocketbed.wire.bodies import MessageQueue

    Groups = dict[str, GroupStatus | str]
    """Status of groups with failover by broker name; a text is the reason why it is unknown."""

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
BODY_SHOWN: Final = 60
"""Characters of a body that are printed in a line."""

nameserver_option: Final = click.option(
    "-n",
    "--nameservers",
    default=DEFAULT_NAMESERVER,
    show_default=True,
    metavar="HOST:PORT[;...]",
    help="Nameservers, separated by semicolons.",
)
json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text."
)


class Moment(click.ParamType[int]):
    """Milliseconds since the epoch, or an ISO 8601 date and time (local unless it has a zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in milliseconds."""
        if isinstance(value, int):
            return value
        time_ms = moment(value)
        if time_ms is None:
            self.fail(
                f"{value!r} is neither milliseconds since the epoch nor an ISO 8601 date and time",
                param,
                ctx,
            )
        return time_ms


def moment(text: str) -> int | None:
    """Return the time in milliseconds; None when the text is not a time."""
    if text.isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run async code; an error that the client raises before it sends anything is wrong usage
    (64)."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    try:
        return trio.run(main)
    except BadMessage as exc:
        raise click.UsageError(str(exc)) from exc
    except NoNameserver as exc:
        hint = "start one (rocketbed cluster up), or give the address of yours with -n"
        raise NoNameserver(f"{exc}: {hint}") from exc
    except KeyboardInterrupt:
        raise click.Abort from None
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise click.Abort from None


def with_admin(nameservers: str, use: Callable[[Admin], Awaitable[T]], **settings: Any) -> T:
    """Run async code that needs an `Admin`; `settings` are keywords for that."""
    from rocketbed.client.admin import Admin

    async def main() -> T:
        async with Admin(nameservers=nameservers, **settings) as admin:
            return await use(admin)

    return run(main)


def show(lines: Iterable[str]) -> bool:
    """Print lines; False once the reader has closed (`| head`), which is no error."""
    try:
        for line in lines:
            click.echo(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as exc:
        # Otherwise the error would be reported again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"cannot write to standard output: {exc.strerror}") from exc
    return True


def show_json(value: object) -> bool:
    """Print a JSON value on a line; as `show`."""
    return show([json.dumps(value, ensure_ascii=False)])


def group_rows(groups: Groups) -> list[dict[str, object]]:
    """Return groups with failover as JSON, with the same form in every command. `error` is the
    reason why a group's state is unknown, else null."""
    return [
        {"brokerName": name, "error": group}
        if isinstance(group, str)
        else {"brokerName": name, "error": None, **group.as_json()}
        for name, group in groups.items()
    ]


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows with columns as wide as needed; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def queue_text(queue: MessageQueue) -> str:
    """Return `broker-a/3`."""
    return f"{queue.broker_name}/{queue.queue_id}"


def time_text(time_ms: int) -> str:
    """Return a wall time as local time, with its zone."""
    local = datetime.fromtimestamp(time_ms / 1000).astimezone()
    return local.isoformat(sep=" ", timespec="milliseconds")


def message_line(message: Received) -> str:
    """Return one line for a message."""
    words = [
        f"{queue_text(message.queue)} {message.queue_offset}",
        time_text(message.stored_ms),
        message.message_id,
    ]
    if message.tag:
        words.append(f"tag={message.tag}")
    if message.keys:
        words.append(f"keys={','.join(message.keys)}")
    return "  ".join([*words, body_text(message.body)])


def body_text(body: bytes, *, shown: int = BODY_SHOWN) -> str:
    """Return the first `shown` characters of a body, as text or in hex."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        text = text.encode("unicode_escape").decode() if text else f"0x{body.hex()}"
    if len(text) <= shown:
        return text
    return f"{text[:shown]}... ({len(body)} bytes)"


def message_row(message: Received) -> dict[str, object]:
    """Return a message as JSON, with the names of `rocketbed store dump` and the body itself."""
    row: dict[str, object] = {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "flag": message.flag,
        "bornTimestamp": message.born_ms,
        "bornHost": f"{message.born_host[0]}:{message.born_host[1]}",
        "storeTimestamp": message.stored_ms,
        "reconsumeTimes": message.reconsume_times,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_id,
        "bodyLength": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "properties": dict(sorted(message.properties.items())),
    }
    try:
        row["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        row["bodyBase64"] = base64.b64encode(message.body).decode("ascii")
    return row


def parse_queue(text: str, queues: Iterable[MessageQueue]) -> MessageQueue:
    """Return a queue by `broker/id`, or by its id if only one broker has such a queue.

    Raises `BadMessage`.
    """
    candidates = list(queues)
    broker, slash, number = text.rpartition("/")
    if not number.isdigit():
        raise BadMessage(f"queue {text!r}: expected ID or BROKER/ID")
    matching = [
        queue
        for queue in candidates
        if queue.queue_id == int(number) and (not slash or queue.broker_name == broker)
    ]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(queue_text(queue) for queue in (matching or candidates)) or "none"
    problem = "exists on several brokers" if matching else "does not exist"
    raise BadMessage(f"queue {text} {problem}: {names}")
