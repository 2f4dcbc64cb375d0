"""Serves the page, its values, and its buttons, on 127.0.0.1 within the harness's own loop.

GET /              the page (the token in the address; a cookie for looking afterwards)
GET /live.js ...   its parts
GET /feed          server-sent events: {"whole": ..., "values": {...}} (`chaos.live.feed`)
POST /press        {"action": "kill", "name": "b1"}: a button; the token in a header
GET /report        the run's report, once it exists
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Protocol

import h11
import orjson
import trio

from rocketbed.chaos.live.access import Access
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.http import BadRequest, HttpConnection, Request
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import Listener, Stream, World

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 64
STRANGERS_MAX: Final = 64
"""Limit of connections that have not shown the token yet; beyond it the oldest is dropped."""
PAGE: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".toml": "text/plain; charset=utf-8",
}
REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Policy of a report: one file that contains its styles and its script."""


class LiveError(RocketbedError):
    """The page cannot be served; the message says what to do."""


class Refused(Exception):
    """A button cannot be pressed now; the reason is for the user."""


class Desk(Protocol):
    async def press(self, action: str, name: str) -> str:
        """Do something to a machine and return what was done. Raises `Refused`."""


class LiveServer:
    """A page for any number of browsers."""

    def __init__(self, world: World, feed: Feed, desk: Desk) -> None:
        self.feed = feed
        self.access = Access(0)
        """A placeholder; `listen` sets the effective one."""
        self.files: dict[str, Path] = {}
        """Path of the address -> additional file to serve."""
        self._world = world
        self._desk = desk
        self._listener: Listener | None = None
        self._admitted = 0
        self._strangers: dict[HttpConnection, trio.CancelScope] = {}
        self._parts = {
            f"/{file.name}": file
            for file in PAGE.iterdir()
            if file.suffix in KINDS and file.name != INDEX
        }
        self._routes: dict[tuple[str, str], Callable[[HttpConnection, Request], Awaitable[None]]]
        self._routes = {
            ("GET", "/"): self._page,
            ("GET", "/feed"): self._feed,
            ("POST", "/press"): self._press,
        }

    async def listen(self, port: int) -> str:
        """Listen on a port (0: a free one) and return the address to open. Raises `LiveError`."""
        try:
            self._listener = await self._world.network.listen(HOST, port)
        except OSError as error:
            raise LiveError(
                f"the live page: {error.strerror or error}: choose another --live-port, or leave"
                " it out for a free one"
            ) from error
        self.access = Access(self._listener.address[1])
        return self.access.address

    async def serve(self) -> None:
        """Serve until cancelled. Call `listen` first."""
        assert self._listener is not None
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._connection, await self._listener.accept())
        finally:
            await self._listener.aclose()

    async def _connection(self, stream: Stream) -> None:
        """Handle all requests of one connection; errors of the browser end only this connection."""
        connection = HttpConnection(stream)
        try:
            async with stream:
                try:
                    first = await self._first_request(connection)
                    if first is not None and self._admitted < CONNECTIONS_MAX:
                        await self._serve_admitted(connection, first)
                except BadRequest as error:
                    await _say(connection, error.status, str(error))
                    await connection.finish()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            return

    async def _first_request(self, connection: HttpConnection) -> Request | None:
        """Return the first request if it is admitted. Connections without the token cannot block
        others."""
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.pop(next(iter(self._strangers))).cancel()
        with trio.CancelScope() as scope:
            self._strangers[connection] = scope
            try:
                request = await connection.request()
                if request is None or await self._is_admitted(connection, request):
                    return request
                await connection.finish()
            finally:
                self._strangers.pop(connection, None)
        return None

    async def _serve_admitted(self, connection: HttpConnection, first: Request) -> None:
        self._admitted += 1
        try:
            request: Request | None = first
            while request is not None:
                route = self._routes.get((request.method, request.path))
                if route is not None:
                    await route(connection, request)
                elif request.method == "GET":
                    await self._file(connection, request.path)
                else:
                    text = f"{request.method} is not allowed for {request.path}"
                    await _say(connection, 405, text)
                request = await connection.request()
                if request is not None and not await self._is_admitted(connection, request):
                    return
        finally:
            self._admitted -= 1

    async def _is_admitted(self, connection: HttpConnection, request: Request) -> bool:
        """True if a request is admitted; otherwise the reason is sent."""
        refusal = self.access.refusal(request.method, request.headers, request.query)
        if refusal is not None:
            await _say(connection, 403, refusal)
        return refusal is None

    async def _page(self, connection: HttpConnection, request: Request) -> None:
        headers = [("set-cookie", self.access.cookie)]
        await connection.answer(200, KINDS[".html"], (PAGE / INDEX).read_bytes(), headers)

    async def _file(self, connection: HttpConnection, path: str) -> None:
        extra = self.files.get(path)
        file = self._parts.get(path) if extra is None else extra
        try:
            body = b"" if file is None else file.read_bytes()
        except OSError:
            file = None
        if file is None:
            await _say(connection, 404, f"not found: {path} here")
            return
        policy = [] if extra is None else [("content-security-policy", REPORT_POLICY)]
        await connection.answer(200, KINDS[file.suffix], body, policy)

    async def _feed(self, connection: HttpConnection, request: Request) -> None:
        with self.feed.reader() as reader:
            async with trio.open_nursery() as nursery:

                async def wait_gone() -> None:
                    await connection.wait_gone()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(wait_gone)
                try:
                    await connection.begin("text/event-stream")
                    await connection.go_on(b"retry: 1000\n\n")
                    while True:
                        update = await reader.next()
                        await connection.go_on(b"data: " + orjson.dumps(update._asdict()) + b"\n\n")
                except trio.BrokenResourceError:
                    nursery.cancel_scope.cancel()

    async def _press(self, connection: HttpConnection, request: Request) -> None:
        try:
            wish: Any = orjson.loads(request.body)
            action, name = wish["action"], wish.get("name", "")
            if not isinstance(action, str) or not isinstance(name, str):
                raise TypeError("action and name must be strings")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            await _say(connection, 400, f"not an action: {error}")
            return
        try:
            result = await self._desk.press(action, name)
        except Refused as error:
            await _say(connection, 409, str(error))
        else:
            await _say(connection, 200, result)


async def _say(connection: HttpConnection, status: int, text: str) -> None:
    await connection.answer(status, "text/plain; charset=utf-8", text.encode())
