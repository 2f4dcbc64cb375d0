"""A program that is asked and answers by lines of JSON, in a process that ends with ours."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import trio

from rocketbed.host.program import tied_program


class ProgramEnded(Exception):
    """It ended; the message has the end of its log."""


class LineProcess:
    """`async with LineProcess(command, log) as program: ...`"""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log_path = log
        """What it printed as errors."""
        self._command = tied_program(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._input: trio.lowlevel.FdStream | None = None
        self._output: trio.lowlevel.FdStream | None = None
        self._read = b""

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for stream in (self._input, self._output):
            assert stream is not None
            with trio.CancelScope(shield=True):
                await stream.aclose()

    def _start(self) -> None:
        self.log_path.parent.mkdir(exist_ok=True)
        with self.log_path.open("ab") as log:
            # Not by trio, which starts processes in a thread: this one dies with that thread.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = _stream(self._process.stdin)
        self._output = _stream(self._process.stdout)

    async def say(self, line: dict[str, Any]) -> None:
        """Write a line to it."""
        assert self._input is not None, "it was not entered with `async with`"
        await self._input.send_all(json.dumps(line).encode() + b"\n")

    async def end_of_input(self) -> None:
        """Nothing more is said."""
        assert self._input is not None
        await self._input.aclose()

    async def line(self) -> dict[str, Any]:
        """Read its next line. Raises `ProgramEnded`."""
        assert self._output is not None
        while b"\n" not in self._read:
            data = await self._output.receive_some()
            if not data:
                text = self.log_path.read_text(errors="replace")[-2000:]
                raise ProgramEnded(f"{self.log_path} ends with:\n{text}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        row: dict[str, Any] = json.loads(line)
        return row


def _stream(pipe: IO[bytes]) -> trio.lowlevel.FdStream:
    descriptor = os.dup(pipe.fileno())
    pipe.close()
    return trio.lowlevel.FdStream(descriptor)
