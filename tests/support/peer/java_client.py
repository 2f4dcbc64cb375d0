"""RocketMQ's own client in a process of its own: `java/Peer.java`, asked by lines of JSON."""

import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import trio

from rocketbed.client.messages import Message
from tests.support.peer.brokers import Broker
from tests.support.peer.installation import Installation
from tests.support.peer.line_process import LineProcess
from tests.support.peer.rows import Row, Written

LOAD_BODY: Final = 900
"""Least bytes of a body under load."""
ANSWER_S: Final = 180.0
"""One command; the longest waits for messages over the death of a broker."""
MEMORY_MIB: Final = 192


class JavaError(Exception):
    """A command that Java's client could not do; the message is Java's."""


class JavaClient:
    """`async with JavaClient(installation, nameserver, directory) as java: ...`"""

    def __init__(self, installation: Installation, nameserver: str, directory: Path) -> None:
        command = installation.command("Peer", nameserver, home=directory, memory_mib=MEMORY_MIB)
        self._program = LineProcess(command, directory / "java.log")

    async def __aenter__(self) -> Self:
        await self._program.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._program.__aexit__(kind, error, traceback)

    async def ask(
        self, do: str, *, each: Callable[[dict[str, Any]], None] | None = None, **arguments: Any
    ) -> list[dict[str, Any]]:
        """Do a command of `Peer.java`; its rows. `each` sees a row as soon as it comes.

        Raises `JavaError`, and `trio.TooSlowError` after `ANSWER_S`.
        """
        rows: list[dict[str, Any]] = []
        with trio.fail_after(ANSWER_S):
            await self._program.say({"do": do, **arguments})
            while True:
                answer = await self._program.line()
                if "end" in answer:
                    assert answer["end"] == len(rows)
                    return rows
                if "error" in answer:
                    raise JavaError(f"{do}: {answer['error']}; see {self._program.log_path}")
                rows.append(answer["row"])
                if each is not None:
                    each(answer["row"])

    async def next_line(self) -> None:
        """Ends a command that goes on until it is told more; what asked for it gets its rows."""
        await self._program.say({})

    async def create(self, address: str, topics: Iterable[str], queues: int) -> None:
        """Make topics at one broker, which may be a slave."""
        for topic in topics:
            await self.ask("create", address=address, topic=topic, queues=queues)

    async def send(
        self, messages: list[Message], *, wait: bool = True, order_key: str | None = None
    ) -> list[Written]:
        """Send one after the other; all have to be acknowledged as SEND_OK.

        With `wait` off the broker is asked (`WAIT=false`) to wait neither for its disk nor a slave;
        with `order_key` Java's `SelectMessageQueueByHash` chooses the queue.
        """
        rows_to_send = [_as_json(message, wait) for message in messages]
        for row_to_send in rows_to_send if order_key is not None else ():
            row_to_send["order"] = order_key
        rows = await self.ask("send", messages=rows_to_send)
        assert {row["status"] for row in rows} == {"SEND_OK"}
        return [
            Written(message, row["queueId"], row["queueOffset"], row["msgId"], row["offsetMsgId"])
            for message, row in zip(messages, rows, strict=True)
        ]

    async def send_batch(self, messages: list[Message]) -> None:
        """Send messages of one topic as one batch; it has to be acknowledged."""
        (row,) = await self.ask("send", messages=[_as_json(m, True) for m in messages], batch=True)
        assert row["status"] == "SEND_OK"

    async def load(
        self,
        topic: str,
        broker: Broker,
        *,
        threads: int,
        queues: int,
        kill_after: int,
        kill: Callable[[], None],
    ) -> list[dict[str, Any]]:
        """Send from several threads, call `kill` after so many acknowledgements; all of those."""
        acknowledged = 0

        def count(row: dict[str, Any]) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if acknowledged == kill_after:
                kill()

        return await self.ask(
            "load",
            each=count,
            topic=topic,
            broker=broker.name,
            queues=queues,
            threads=threads,
            size=LOAD_BODY,
        )

    async def read(self, topics: Iterable[str]) -> list[Row]:
        """Read all messages of some topics by the pull consumer."""
        rows = []
        for topic in topics:
            rows += [Row.of_java(row) for row in await self.ask("read", topic=topic)]
        return rows

    async def query(self, topic: str, keys: Iterable[str]) -> dict[str, set[str]]:
        """Offset ids of the messages with each key, at most 64 of each."""
        rows = await self.ask("query", topic=topic, keys=list(keys))
        return {row["key"]: set(row["found"]) for row in rows}

    async def view(self, topic: str, ids: Iterable[str]) -> list[Row]:
        """Single messages by id."""
        return [Row.of_java(row) for row in await self.ask("view", topic=topic, ids=list(ids))]


def _as_json(message: Message, wait: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "properties": dict(message.properties),
        "flag": message.flag,
        "wait": wait,
    }
    if message.tag:
        fields["tags"] = message.tag
    if message.keys:
        fields["keys"] = " ".join(message.keys)
    return fields
