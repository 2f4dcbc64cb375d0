"""The harness's side of the switch: starts its process, and gives it orders.

async with Switch(run, seed="7") as switch:
    await switch.attach("b1", "10.98.0.1", namespace)
    await switch.set_link("b1", "b2", LinkState(delay_s=0.05))
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final, Self

import trio

from rocketbed.chaos.run.links import LinkState
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

ANSWER_S: Final = 10.0
MTU: Final = 1500


class Switch:
    """A running switch process. An async context manager: leaving it ends the process."""

    def __init__(self, run: Ledger, *, seed: str = "") -> None:
        self.log = run.directory / "switch.log"
        """Gets each order as a line of JSON, and what the process prints."""
        self._run = run
        self._seed = seed
        self._lock = trio.Lock()
        self._unparsed = b""

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._stream.socket.close()
        self._process.kill()
        self._process.wait()

    async def attach(self, name: str, address: str, namespace: str, mtu: int = MTU) -> None:
        """Give a namespace its device and address; again after a restart of its machine."""
        await self._order("attach", name=name, address=address, namespace=namespace, mtu=mtu)

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Set one direction between two machines; in force on return."""
        await self._order("link", source=source, target=target, state=asdict(state))

    async def silence(self, name: str) -> None:
        """Drop everything from and to the machine until it is attached again."""
        await self._order("silence", name=name)

    async def reset(self, first: str, second: str) -> None:
        """Reset the connections between two machines; on return both ends of each have seen it."""
        ignored = (await self._order("reset", first=first, second=second)).get("ignored", 0)
        if ignored:
            raise HostError(
                f"{ignored} ends of connections of {first} and {second} ignored the reset"
            )

    async def counters(self) -> dict[str, Any]:
        """Return `forwarded` packets, and `dropped` ones for each direction."""
        result: dict[str, Any] = (await self._order("counters"))["result"]
        return result

    def _start(self, control: socket.socket) -> subprocess.Popen[bytes]:
        program = "rocketbed.chaos.backends.process.network.switch.process"
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", program, str(os.getpid()), self._seed, str(self.log)],
                stdin=control.fileno(),
                stdout=output,
                stderr=output,
                env={**os.environ, **self._run.environment()},
                start_new_session=True,
            )

    async def _order(self, order: str, **fields: Any) -> dict[str, Any]:
        async with self._lock:
            with trio.move_on_after(ANSWER_S):
                try:
                    await self._stream.send_all(
                        json.dumps({"order": order, **fields}).encode() + b"\n"
                    )
                    answer = await self._line()
                except trio.BrokenResourceError:
                    answer = None
                if answer is None:
                    raise HostError(f"the packet switch has exited; see {self.log}")
                if "error" in answer:
                    raise HostError(f"the packet switch refused: {answer['error']}")
                return answer
        raise HostError(f"the packet switch did not answer within {ANSWER_S:g} s")

    async def _line(self) -> dict[str, Any] | None:
        while b"\n" not in self._unparsed:
            data = await self._stream.receive_some()
            if not data:
                return None
            self._unparsed += data
        line, _, self._unparsed = self._unparsed.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer
