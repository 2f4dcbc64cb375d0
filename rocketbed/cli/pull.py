"""`rocketbed pull`: show a topic's messages, once or continuously."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import trio

from rocketbed.cli.client import (
    json_option,
    message_line,
    message_row,
    moment,
    nameserver_option,
    parse_queue,
    run,
    show,
    show_json,
)
from rocketbed.cli.main import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from rocketbed.client.consumer import Consumer
    from rocketbed.client.messages import Received
    from rocketbed.wire.bodies import MessageQueue

WORDS: Final = ("first", "last", "committed")
POLL_S: Final = 1.0
OFFSET_MAX: Final = (1 << 63) - 1
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Group that every broker has from the start, so that reading creates no new one (wire.md 4.7)."""


@dataclass(frozen=True, slots=True)
class Start:
    """First position in each queue: a word, an offset, or a time."""

    word: str | None = None
    offset: int | None = None
    time_ms: int | None = None


class StartType(click.ParamType[Start]):
    """One of some words, a queue offset, or a date and time."""

    name = "start"

    def __init__(self, words: tuple[str, ...] = WORDS) -> None:
        self._words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Start:
        """Return the parsed position."""
        if isinstance(value, Start):
            return value
        if value in self._words:
            return Start(word=value)
        if value.isdigit():
            if int(value) > OFFSET_MAX:
                self.fail(f"{value} is beyond any queue offset", param, ctx)
            return Start(offset=int(value))
        time_ms = moment(value)
        if time_ms is None:
            self.fail(
                f"{value!r} must be {', '.join(self._words)}, a queue offset, or a date and time",
                param,
                ctx,
            )
        return Start(time_ms=time_ms)


@click.command()
@nameserver_option
@click.option("-t", "--topic", required=True)
@click.option("--group", help="Consumer group; starts at its committed offsets.")
@click.option(
    "--from",
    "start",
    type=StartType(),
    metavar="first|last|committed|OFFSET|TIME",
    help="Where to start: the first message (default), the end, the group's committed offset, a"
    " queue offset, or a date and time.",
)
@click.option("--queue", metavar="[BROKER/]ID", help="Only this queue.")
@click.option("--tags", default="*", help="Only messages with these tags, e.g. 'a || b'.")
@click.option("--limit", type=click.IntRange(min=1), help="Show at most this many messages.")
@click.option("--follow", is_flag=True, help="Keep running and show new messages as they arrive.")
@click.option(
    "--commit",
    is_flag=True,
    help="At the end, also when interrupted, commit the offsets of the messages shown for --group;"
    " nothing if the output was closed before all of them were written.",
)
@json_option
def pull(
    nameservers: str,
    topic: str,
    group: str | None,
    start: Start | None,
    queue: str | None,
    tags: str,
    limit: int | None,
    follow: bool,
    commit: bool,
    as_json: bool,
) -> int:
    """Show the messages of a topic."""
    from rocketbed.client.consumer import Consumer
    from rocketbed.client.errors import NoRoute

    if commit and group is None:
        raise click.UsageError("--commit needs --group")
    begin = start or Start(word="committed" if group else "first")
    if begin.word == "committed" and group is None:
        raise click.UsageError("--from committed needs --group")
    output = _Output(as_json, limit)

    async def main() -> int:
        async with Consumer(nameservers=nameservers, group=group or TOOLS_GROUP) as consumer:
            queues: Iterable[MessageQueue] = await consumer.queues(topic)
            if not queues:
                raise NoRoute(f"topic {topic} has no queue that may be read")
            if queue is not None:
                queues = [parse_queue(queue, queues)]
            starts = {item: await _offset(consumer, item, begin) for item in queues}
            read = _follow if follow else _read_to_end
            interrupted = await _unless_interrupted(partial(read, consumer, starts, tags, output))
            if commit and output.is_cut_off:
                click.echo("nothing committed: the output's reader went away", err=True)
            elif commit:
                await consumer.commit(output.positions)
            return EXIT_INTERRUPTED if interrupted else 0

    return run(main)


class _Output:
    """Prints messages up to the limit, and records the positions."""

    def __init__(self, as_json: bool, limit: int | None) -> None:
        self.positions: dict[MessageQueue, int] = {}
        self.is_cut_off = False
        """True if the reader of the output has closed, and may not have seen the last messages."""
        self._show: Callable[[Received], bool] = _show_json if as_json else _show_line
        self._remaining = limit

    @property
    def is_enough(self) -> bool:
        return self._remaining == 0 or self.is_cut_off

    def take(self, messages: Iterable[Received]) -> bool:
        """Print messages as far as the limit allows; False if some were not printed."""
        for message in messages:
            if self.is_enough:
                return False
            self.is_cut_off = not self._show(message)
            self.positions[message.queue] = message.queue_offset + 1
            if self._remaining is not None:
                self._remaining -= 1
        return True


def _show_json(message: Received) -> bool:
    return show_json(message_row(message))


def _show_line(message: Received) -> bool:
    return show([message_line(message)])


async def _unless_interrupted(read: Callable[[], Awaitable[None]]) -> bool:
    """Read to the end; True if that was an interrupt, after which a commit is still possible."""
    interrupted = False

    async def wait() -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                interrupted = True
                nursery.cancel_scope.cancel()

    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        try:
            await read()
        except Exception as exc:
            error = exc  # raised below, not as part of a group
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return interrupted


async def _offset(consumer: Consumer, queue: MessageQueue, start: Start) -> int:
    offsets = consumer.offsets
    if start.offset is not None:
        return start.offset
    if start.time_ms is not None:
        return await offsets.offset_at(queue, start.time_ms)
    if start.word == "last":
        return await offsets.max_offset(queue)
    if start.word == "committed":
        stored = await consumer.committed(queue)
        if stored is not None:
            return stored
    return await offsets.min_offset(queue)


async def _read_to_end(
    consumer: Consumer, starts: dict[MessageQueue, int], tags: str, output: _Output
) -> None:
    """Print the messages up to the current ends, queue by queue."""
    for queue, offset in starts.items():
        end = await consumer.offsets.max_offset(queue)
        while offset < end and not output.is_enough:
            pulled = await consumer.pull(queue, offset, tags=tags)
            in_time = [item for item in pulled.messages if item.queue_offset < end]
            if output.take(in_time):
                output.positions[queue] = min(pulled.next_offset, end)
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset


async def _follow(
    consumer: Consumer, starts: dict[MessageQueue, int], tags: str, output: _Output
) -> None:
    """Print messages continuously, up to the limit or an interrupt."""
    await consumer.assign(starts, tags=tags)
    for queue, offset in starts.items():
        consumer.seek(queue, offset)
    while not output.is_enough:
        output.take(await consumer.poll(timeout_s=POLL_S))
