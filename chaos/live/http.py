"""Connection of a browser: requests in, answers out. h11 implements the protocol itself.

Limits: a request's head 16 KiB, its body 4 KiB, 10 s for both from its first byte; 10 s until the
first request begins. A browser that accepts no data for 20 s is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import h11
import trio

from rocketbed.world.api import Stream

READ_S: Final = 10.0
IDLE_S: Final = 120.0
"""Limit for an idle connection between requests."""
WRITE_S: Final = 20.0
LINGER_S: Final = 1.0
"""Time to linger after an answer to a request that was not read completely."""
HEAD_MAX: Final = 16 << 10
BODY_MAX: Final = 4 << 10
_CHUNK: Final = 16 << 10
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content policy of our pages: only resources of this server."""


class BadRequest(Exception):
    """The request is not acceptable; the connection is closed after the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name; the last value of a repeated header."""
    body: bytes = b""


class HttpConnection:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        self._is_first = True
        self._is_bodiless = False

    async def request(self) -> Request | None:
        """Return the next request; None if the browser has disconnected. Raises `BadRequest`."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        elif self._protocol.our_state is not h11.IDLE:
            return None
        try:
            with trio.fail_after(READ_S if self._is_first else IDLE_S):
                if not self._protocol.trailing_data[0]:
                    self._protocol.receive_data(bytes(await self._stream.receive_some(_CHUNK)))
            self._is_first = False
            with trio.fail_after(READ_S):
                head = await self._event()
                if not isinstance(head, h11.Request):
                    return None
                self._is_bodiless = head.method == b"HEAD"
                body = await self._body()
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint, str(error)) from error
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        try:
            target = urlsplit(head.target.decode("latin-1"))
        except ValueError as error:
            raise BadRequest(400, f"invalid address: {error}") from error
        return Request(
            method=head.method.decode("ascii"),
            path=target.path,
            query=dict(parse_qsl(target.query)),
            headers={name.decode(): value.decode("latin-1") for name, value in head.headers},
            body=body,
        )

    async def answer(
        self, status: int, kind: str, body: bytes, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Send a complete answer of a content type. Raises `trio.BrokenResourceError`."""
        length = [("content-length", str(len(body)))]
        data = self._head(status, kind, [*length, *headers])
        if not self._is_bodiless:
            data += self._protocol.send(h11.Data(data=body)) or b""
        data += self._protocol.send(h11.EndOfMessage()) or b""
        await self._send(data)

    async def begin(self, kind: str) -> None:
        """Begin an answer that continues until it is aborted."""
        await self._send(self._head(200, kind, []))

    async def go_on(self, body: bytes) -> None:
        """Send a further part of it. Raises `trio.BrokenResourceError`, also if no data is
        accepted."""
        await self._send(self._protocol.send(h11.Data(data=body)) or b"")

    async def wait_gone(self) -> None:
        try:
            await self._stream.receive_some(1)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def finish(self) -> None:
        """Receive for a moment what still arrives: closing before could lose the answer."""
        with trio.move_on_after(LINGER_S):
            await self._stream.send_eof()
            while await self._stream.receive_some(_CHUNK):
                pass

    def _head(self, status: int, kind: str, headers: list[tuple[str, str]]) -> bytes:
        always = [
            ("content-type", kind),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ]
        if not any(name == "content-security-policy" for name, _ in headers):
            always.append(("content-security-policy", POLICY))
        response = h11.Response(status_code=status, headers=[*always, *headers])
        return self._protocol.send(response) or b""

    async def _send(self, data: bytes) -> None:
        with trio.move_on_after(WRITE_S) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError(f"the browser accepted no data for {WRITE_S:g} s")

    async def _event(self) -> h11.Event | type[h11.PAUSED] | None:
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                if self._protocol.they_are_waiting_for_100_continue:
                    raise BadRequest(417, "'100-continue' is not supported")
                self._protocol.receive_data(bytes(await self._stream.receive_some(_CHUNK)))
                continue
            return event  # type: ignore[return-value]

    async def _body(self) -> bytes:
        body = bytearray()
        while True:
            event = await self._event()
            if not isinstance(event, h11.Data):
                return bytes(body)
            body += event.data
            if len(body) > BODY_MAX:
                raise BadRequest(413, f"more than {BODY_MAX} bytes")
