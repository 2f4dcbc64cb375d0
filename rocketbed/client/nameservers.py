"""The nameservers: queries go to one of them, changes to all.

The client stays with one as long as it answers, and turns to the next when it fails. Connecting has
a time limit of its own, so that an unreachable nameserver cannot use up the time of a whole call
(wire.md 11, trap 9).
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import trio

from rocketbed.client.connections import Connections
from rocketbed.client.errors import BadMessage, NoNameserver, RequestRefused, writing
from rocketbed.remoting.client import parse_address
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Address, World

T = TypeVar("T")

CONNECT_S: Final = 0.75
"""Time to connect to a nameserver, seconds; three unreachable ones still leave time in a call of 3
s."""
REQUEST_S: Final = 3.0
"""Time for one request, seconds; a client's default (wire.md 1.8)."""


def parse_nameservers(value: str | Sequence[str]) -> list[Address]:
    """Parse addresses from `host:port;host:port` (`,` separates too) or a list. Raises
    `BadMessage`."""
    texts = value.replace(",", ";").split(";") if isinstance(value, str) else value
    try:
        addresses = [parse_address(text) for text in texts if text.strip()]
    except ValueError as exc:
        raise BadMessage(f"nameservers: {exc}") from exc
    if not addresses:
        raise BadMessage("at least one nameserver is required, as host:port")
    return list(dict.fromkeys(addresses))


class Nameservers:
    """The list of nameservers, and the current one."""

    def __init__(
        self, world: World, addresses: Sequence[Address], connections: Connections
    ) -> None:
        self._world = world
        self._connections = connections
        self.addresses = list(addresses)
        world.random.shuffle(self.addresses)
        self._current = 0
        self.unanswered: dict[Address, None] = {}
        """Nameservers that have not answered the last request to them."""

    async def read(
        self,
        command: Command,
        action: str,
        read: Callable[[Command], T],
        *,
        also: Collection[int] = (),
        timeout_s: float = REQUEST_S,
    ) -> T:
        """Query one nameserver; return the result of `read` for an answer with code success, or one
        of `also`.

        A nameserver that does not answer in time, refuses, or sends an unreadable answer
        (`ProtocolError`) is skipped. Raises `RequestRefused` when all refuse, `NoNameserver` when
        no answer can be used.
        """
        failures, refused = [], []
        with trio.move_on_after(timeout_s):
            for remaining in range(len(self.addresses), 0, -1):
                number = self._current
                address = self.addresses[number]
                where = f"{address[0]}:{address[1]}"
                try:
                    answer = await self._ask(address, command, timeout_s, remaining=remaining)
                    if answer.code != ResponseCode.SUCCESS and answer.code not in also:
                        peer = f"nameserver {where}"
                        refused.append(RequestRefused(action, peer, answer.code, answer.remark))
                        failures.append(str(refused[-1]))
                        self._turn_from(number)
                        continue
                    return read(answer)
                except ProtocolError as exc:
                    failures.append(f"{where} gives an answer that cannot be read: {exc}")
                    self._connections.close(address, failures[-1])
                    self._turn_from(number)
                except RemotingError as exc:
                    failures.append(str(exc))
                    self._connections.close(address, str(exc))
                    self._turn_from(number)
                except trio.Cancelled:
                    failures.append(
                        f"no answer from {where} to request {command.code} within {timeout_s:g} s"
                    )
                    # Turn to the next: a caller with less time than one request may take would
                    # otherwise query this one forever.
                    self._turn_from(number)
                    raise
        if refused and len(refused) == len(self.addresses):
            raise refused[0]
        if not failures or len(failures) < len(self.addresses):
            failures.append(f"timed out after {timeout_s:g} s")
        raise NoNameserver(f"no nameserver answered: {'; '.join(failures)}")

    async def body(self, code: RequestCode, action: str, decode: Callable[[bytes], T]) -> T:
        """Query one nameserver for a list or table. Raises as `read` does."""
        return await self.read(request(code), action, lambda answer: decode(answer.body))

    def _turn_from(self, number: int) -> None:
        if self._current == number:
            self._current = (number + 1) % len(self.addresses)

    async def request_all(
        self, command: Command, action: str, *, timeout_s: float = REQUEST_S
    ) -> list[Command]:
        """Send a request to every nameserver; return their answers.

        Raises `RequestRefused` for the first answer that is not success, `NoNameserver` when any of
        them did not answer, after all were asked.
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
                raise RequestRefused(action, peer, answer.code, answer.remark)
        if failures:
            raise NoNameserver(f"{action}: not every nameserver answered: {'; '.join(failures)}")
        return [answer for _, answer in answers]

    async def ask(self, address: Address, command: Command) -> Command:
        """Send a request to this nameserver. Raises `NoNameserver`."""
        try:
            return await self._ask(address, command, REQUEST_S)
        except RemotingError as exc:
            raise NoNameserver(f"{address[0]}:{address[1]} did not answer: {exc}") from exc

    async def _ask(
        self, address: Address, command: Command, timeout_s: float, *, remaining: int = 1
    ) -> Command:
        """`remaining`: number of nameservers that share the caller's remaining time, this one
        included."""
        self.unanswered[address] = None
        share_s = timeout_s if len(self.addresses) == 1 else timeout_s / 2
        if remaining > 1:
            left_s = trio.current_effective_deadline() - trio.current_time()
            share_s = min(share_s, max(left_s, 0.0) / 2)  # a caller's deadline may end late
        link = await self._connections.link(address, timeout_s=min(CONNECT_S, share_s))
        with writing():
            answer = await link.request(command, timeout_s=share_s)
        self.unanswered.pop(address, None)
        return answer
