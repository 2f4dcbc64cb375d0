"""The nameservers: questions go to one of them, changes to all.

We stay with one as long as it answers and turn to the next when it fails. Connecting has a budget
of its own, so that one unreachable nameserver cannot eat the time of a whole call (wire.md 11,
trap 9).
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import trio

from rocketbed.client.connections import Connections
from rocketbed.client.errors import BadMessage, NoNameserver, RequestRefused
from rocketbed.remoting.client import parse_address
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Address, World

T = TypeVar("T")

CONNECT_S: Final = 0.75
"""For each nameserver; three unreachable ones still leave time in a call of 3 s."""
REQUEST_S: Final = 3.0
"""A client's default (wire.md 1.8)."""


def parse_nameservers(given: str | Sequence[str]) -> list[Address]:
    """Addresses from `host:port;host:port` (`,` separates too) or a list. Raises `BadMessage`."""
    texts = given.replace(",", ";").split(";") if isinstance(given, str) else given
    try:
        found = [parse_address(text) for text in texts if text.strip()]
    except ValueError as exc:
        raise BadMessage(f"nameservers: {exc}") from exc
    if not found:
        raise BadMessage("at least one nameserver is required, as host:port")
    return list(dict.fromkeys(found))


class Nameservers:
    """The list, and which one of them is asked."""

    def __init__(
        self, world: World, addresses: Sequence[Address], connections: Connections
    ) -> None:
        self._world = world
        self._connections = connections
        self.addresses = list(addresses)
        world.random.shuffle(self.addresses)
        self._current = 0
        self.unanswered: dict[Address, None] = {}
        """Those that were asked, and have not answered yet, or not when they were asked last."""

    async def read(
        self,
        command: Command,
        what: str,
        read: Callable[[Command], T],
        *,
        also: Collection[int] = (),
        timeout_s: float = REQUEST_S,
    ) -> T:
        """Ask one; what `read` makes of an answer that is success, or has one of the codes `also`.

        One that gives none in time, refuses, or gives what cannot be read (`ProtocolError`) is
        passed over. Raises `RequestRefused` when all refuse, `NoNameserver` when none helps.
        """
        failures, refused = [], []
        with trio.move_on_after(timeout_s):
            for left in range(len(self.addresses), 0, -1):
                asked = self._current
                address = self.addresses[asked]
                where = f"{address[0]}:{address[1]}"
                try:
                    answer = await self._ask(address, command, timeout_s, left=left)
                    if answer.code != ResponseCode.SUCCESS and answer.code not in also:
                        peer = f"nameserver {where}"
                        refused.append(RequestRefused(what, peer, answer.code, answer.remark))
                        failures.append(str(refused[-1]))
                        self._turn_from(asked)
                        continue
                    return read(answer)
                except ProtocolError as exc:
                    failures.append(f"{where} gives an answer that cannot be read: {exc}")
                    self._connections.close(address, failures[-1])
                    self._turn_from(asked)
                except RemotingError as exc:
                    failures.append(str(exc))
                    self._connections.close(address, str(exc))
                    self._turn_from(asked)
                except trio.Cancelled:
                    failures.append(
                        f"no answer from {where} to request {command.code} within {timeout_s:g} s"
                    )
                    # A caller with less time than we give each would ask the same one for ever.
                    self._turn_from(asked)
                    raise
        if refused and len(refused) == len(self.addresses):
            raise refused[0]
        if not failures or len(failures) < len(self.addresses):
            failures.append(f"timed out after {timeout_s:g} s")
        raise NoNameserver(f"no nameserver answered: {'; '.join(failures)}")

    async def body(self, code: RequestCode, what: str, decode: Callable[[bytes], T]) -> T:
        """Ask one for a list or table that it keeps. Raises as `read` does."""
        return await self.read(request(code), what, lambda answer: decode(answer.body))

    def _turn_from(self, asked: int) -> None:
        if self._current == asked:
            self._current = (asked + 1) % len(self.addresses)

    async def request_all(
        self, command: Command, what: str, *, timeout_s: float = REQUEST_S
    ) -> list[Command]:
        """Ask every one; their answers.

        Raises `RequestRefused` for the first answer that is not success, `NoNameserver` when any
        of them gave none, after all were asked.
        """
        answers: list[tuple[Address, Command]] = []
        failures = []
        for address in sorted(self.addresses):
            try:
                answers.append((address, await self._ask(address, command, timeout_s)))
            except RemotingError as exc:
                failures.append(str(exc))
        for address, answer in answers:
            if answer.code != ResponseCode.SUCCESS:
                peer = f"nameserver {address[0]}:{address[1]}"
                raise RequestRefused(what, peer, answer.code, answer.remark)
        if failures:
            raise NoNameserver(f"{what}: not every nameserver answered: {'; '.join(failures)}")
        return [answer for _, answer in answers]

    async def ask(self, address: Address, command: Command) -> Command:
        """Ask this one. Raises `NoNameserver`."""
        try:
            return await self._ask(address, command, REQUEST_S)
        except RemotingError as exc:
            raise NoNameserver(f"{address[0]}:{address[1]} did not answer: {exc}") from exc

    async def _ask(
        self, address: Address, command: Command, timeout_s: float, *, left: int = 1
    ) -> Command:
        """`left`: so many share what time the caller has left, and this is the first of them."""
        self.unanswered[address] = None
        share_s = timeout_s if len(self.addresses) == 1 else timeout_s / 2
        if left > 1:
            left_s = trio.current_effective_deadline() - trio.current_time()
            share_s = min(share_s, max(left_s, 0.0) / 2)  # one that is over is told of it late
        link = await self._connections.link(address, timeout_s=min(CONNECT_S, share_s))
        answer = await link.request(command, timeout_s=share_s)
        self.unanswered.pop(address, None)
        return answer
