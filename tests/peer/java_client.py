"""RocketMQ's own client in a process of its own: `java/Peer.java`, asked by lines of JSON."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import trio

from tests.peer.brokers import tied
from tests.peer.installation import Installation
from tests.peer.rows import Row

ANSWER_S: Final = 60.0
"""One command; the longest reads some thousand messages."""
MEMORY_MIB: Final = 192


class JavaError(Exception):
    """A command that Java's client could not do; the message is Java's."""


class JavaClient:
    """`async with JavaClient(installation, nameserver, directory) as java: ...`"""

    def __init__(self, installation: Installation, nameserver: str, directory: Path) -> None:
        self._directory = directory
        self._command = tied(
            installation.command("Peer", nameserver, home=directory, memory_mib=MEMORY_MIB)
        )
        self._process: trio.Process | None = None
        self._read = b""

    async def __aenter__(self) -> Self:
        self._directory.mkdir(exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                await stream.aclose()

    @property
    def log_path(self) -> Path:
        """What Java printed as errors."""
        return self._directory / "java.log"

    async def ask(
        self, do: str, *, each: Callable[[dict[str, Any]], None] | None = None, **arguments: Any
    ) -> list[dict[str, Any]]:
        """Do a command of `Peer.java`; its rows. `each` sees a row as soon as it comes.

        Raises `JavaError`, and `trio.TooSlowError` after `ANSWER_S`.
        """
        assert self._process is not None and self._process.stdin is not None
        rows = []
        with trio.fail_after(ANSWER_S):
            await self._process.stdin.send_all(json.dumps({"do": do, **arguments}).encode() + b"\n")
            while True:
                answer = json.loads(await self._line())
                if "end" in answer:
                    assert answer["end"] == len(rows)
                    return rows
                if "error" in answer:
                    raise JavaError(f"{do}: {answer['error']}; see {self.log_path}")
                rows.append(answer["row"])
                if each is not None:
                    each(answer["row"])

    async def read(self, topics: Iterable[str]) -> list[Row]:
        """All messages of some topics, by the pull consumer."""
        found = []
        for topic in topics:
            found += [Row.of_java(row) for row in await self.ask("read", topic=topic)]
        return found

    async def query(self, topic: str, keys: Iterable[str]) -> dict[str, set[str]]:
        """Offset ids of the messages with each key, at most 64 of each."""
        rows = await self.ask("query", topic=topic, keys=list(keys))
        return {row["key"]: set(row["found"]) for row in rows}

    async def view(self, topic: str, ids: Iterable[str]) -> list[Row]:
        """Single messages by id."""
        return [Row.of_java(row) for row in await self.ask("view", topic=topic, ids=list(ids))]

    async def _line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._read:
            data = await self._process.stdout.receive_some()
            if not data:
                text = self.log_path.read_text(errors="replace")[-2000:]
                raise JavaError(f"the Java client ended; {self.log_path} ends with:\n{text}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line
