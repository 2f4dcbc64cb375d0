"""The live page over plain sockets: answers, refusals, and browsers that misbehave."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.http import BODY_MAX, HEAD_MAX
from rocketbed.chaos.live.server import STRANGERS_MAX, LiveError, LiveServer, Refused
from rocketbed.world.real import real_world


class Desk:
    """Keeps what was pressed."""

    def __init__(self) -> None:
        self.pressed: list[tuple[str, str]] = []

    async def press(self, action: str, name: str) -> str:
        if action == "promote":
            raise Refused("promote b1: it is the master")
        self.pressed.append((action, name))
        return f"{action} {name}"


class Site:
    """A server that runs."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.desk = Desk()
        self.server = LiveServer(real_world("test"), self.feed, self.desk)

    @property
    def token(self) -> str:
        return self.server.access.token

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.access.port}"

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.server.access.port)

    async def ask(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """Make a request on a connection of its own: return status, headers, body."""
        lines = {"host": self.host, "connection": "close", **(headers or {})}
        if body:
            lines["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        async with await self.connect() as stream:
            await stream.send_all(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
            return parse(await receive_all(stream))

    async def press(self, wish: object, headers: dict[str, str] | None = None) -> tuple[int, str]:
        own = {"x-rocketbed-token": self.token} if headers is None else headers
        body = wish if isinstance(wish, bytes) else json.dumps(wish).encode()
        status, _, text = await self.ask("POST", "/press", own, body)
        return status, text.decode()


async def receive_all(stream: trio.SocketStream) -> bytes:
    data = b""
    while part := await stream.receive_some():
        data += part
    return data


def parse(data: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, value in headers.items()}, body


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    opened = Site()
    await opened.server.listen(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened.server.serve)
        with trio.fail_after(20):
            yield opened
        nursery.cancel_scope.cancel()


async def test_the_page_and_its_parts() -> None:
    async with site() as here:
        status, headers, body = await here.ask("GET", f"/?token={here.token}")
        assert status == 200
        assert here.token.encode() not in body
        assert here.token not in headers["set-cookie"]
        assert headers["content-security-policy"].startswith("default-src 'none'")
        cookie = {"cookie": headers["set-cookie"].partition(";")[0]}
        for part in ("/live.js", "/live.css", "/cards.js", "/charts.js", "/svg.js", "/icon.svg"):
            assert (await here.ask("GET", part, cookie))[0] == 200, part
        for absent in ("/nothing.js", "/../server.py", "/page/live.js", "/report"):
            assert (await here.ask("GET", absent, cookie))[0] == 404, absent


async def test_nothing_without_the_token() -> None:
    async with site() as here:
        for target in ("/", "/?token=wrong", "/feed", "/live.js", "/report"):
            status, headers, body = await here.ask("GET", target)
            assert status == 403, target
            assert "set-cookie" not in headers
            assert here.token.encode() not in body
        for headers in ({}, {"x-rocketbed-token": "wrong"}, {"cookie": f"a={here.token}"}):
            assert (await here.press({"action": "kill", "name": "b1"}, headers))[0] == 403
        assert here.desk.pressed == []


async def test_other_sites_and_other_names_are_refused() -> None:
    async with site() as here:
        token = {"x-rocketbed-token": here.token}
        wish = {"action": "kill", "name": "b1"}
        evil = f"evil.example:{here.server.access.port}"
        assert (await here.press(wish, {**token, "origin": "http://evil.example"}))[0] == 403
        assert (await here.press(wish, {**token, "host": evil}))[0] == 403
        assert (await here.ask("GET", f"/?token={here.token}", {"host": evil}))[0] == 403
        assert (await here.ask("OPTIONS", "/press", {"origin": "http://evil.example"}))[0] == 403
        assert here.desk.pressed == []
        assert (await here.press(wish, {**token, "origin": f"http://{here.host}"}))[0] == 200
        assert here.desk.pressed == [("kill", "b1")]


async def test_answers_are_hidden_from_other_sites() -> None:
    async with site() as here:
        _, headers, _ = await here.ask(
            "GET", f"/?token={here.token}", {"origin": f"http://{here.host}"}
        )
        assert not any(name.startswith("access-control") for name in headers)
        assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_buttons_answer_with_the_action_or_the_reason() -> None:
    async with site() as here:
        assert await here.press({"action": "kill", "name": "b1"}) == (200, "kill b1")
        assert await here.press({"action": "promote", "name": "b1"}) == (
            409,
            "promote b1: it is the master",
        )
        for wish in (b"{", b"[]", b'"kill"', b"null", b'{"name": "b1"}', b'{"action": 7}'):
            assert (await here.press(wish))[0] == 400, wish


async def test_oversized_and_invalid_requests_end_one_connection() -> None:
    async with site() as here:
        token = {"x-rocketbed-token": here.token}
        large = await here.ask("POST", "/press", token, b"x" * (BODY_MAX + 1))
        assert large[0] == 413
        long = await here.ask("GET", "/", {"x-long": "x" * 4 * HEAD_MAX})
        assert long[0] == 431
        for nonsense in (b"\x16\x03\x01\x02\x00\x01", b"GET //[ HTTP/1.1\r\nhost: a\r\n\r\n"):
            async with await here.connect() as stream:
                await stream.send_all(nonsense + b"\r\n\r\n")
                assert parse(await receive_all(stream))[0] == 400
        assert (await here.ask("GET", f"/?token={here.token}"))[0] == 200


async def test_browsers_share_updates_and_a_closed_one_is_forgotten() -> None:
    async with site() as here:
        here.feed.put("clock", 1)
        request = (
            f"GET /feed HTTP/1.1\r\nhost: {here.host}\r\n"
            f"cookie: {here.server.access.cookie.partition(';')[0]}\r\n\r\n"
        ).encode()
        streams = [await here.connect() for _ in range(3)]
        for stream in streams:
            await stream.send_all(request)
            data = b""
            while b'"clock":1' not in data:
                data += await stream.receive_some()
            assert b"text/event-stream" in data
            assert b'"whole":true' in data
        assert here.feed.readers == 3
        await streams.pop().aclose()
        while here.feed.readers == 3:
            await trio.lowlevel.checkpoint()
        here.feed.put("clock", 2)
        for stream in streams:
            data = b""
            while b'"clock":2' not in data:
                data += await stream.receive_some()
            assert b'"whole":false' in data
            await stream.aclose()


async def test_the_report_is_served_once_there_is_one(tmp_path: Path) -> None:
    report = tmp_path / "index.html"
    report.write_text("<style>b{}</style>all is well")
    async with site() as here:
        cookie = {"cookie": here.server.access.cookie.partition(";")[0]}
        here.server.files["/report"] = report
        status, headers, body = await here.ask("GET", "/report", cookie)
        assert (status, body) == (200, report.read_bytes())
        assert "style-src 'unsafe-inline'" in headers["content-security-policy"]


async def test_taken_port_is_reported() -> None:
    async with site() as here:
        second_server = LiveServer(real_world("test"), Feed(), Desk())
        with pytest.raises(LiveError, match="choose another --live-port"):
            await second_server.listen(here.server.access.port)


async def test_two_servers_do_not_take_each_others_tokens() -> None:
    async with site() as first, site() as second:
        assert (await first.ask("GET", f"/?token={second.token}"))[0] == 403
        cookies = "; ".join(s.server.access.cookie.partition(";")[0] for s in (first, second))
        for here in (first, second):
            assert (await here.ask("GET", "/", {"cookie": cookies}))[0] == 200


async def test_whatever_is_asked_ends_one_connection_only() -> None:
    """Without the token too: each of these is one line of somebody else's shell."""
    async with site() as here:
        cookie = f"cookie: {here.server.access.cookie.partition(';')[0]}\r\n"
        long = "/" + "x" * 3000 + ".js"
        for first, more, status in (
            ("HEAD / HTTP/1.1", "", 403),
            ("HEAD / HTTP/1.0", "", 403),
            ("CONNECT a:1 HTTP/1.1", "", 403),
            ("GET / HTTP/1.1", "upgrade: websocket\r\nconnection: upgrade\r\n", 403),
            (f"GET {long} HTTP/1.1", cookie, 404),
            ("GET * HTTP/1.1", cookie, 404),
            ("GET /%00.js HTTP/1.1", cookie, 404),
        ):
            async with await here.connect() as stream:
                head = f"{first}\r\nhost: {here.host}\r\n{more}\r\n"
                await stream.send_all(head.encode())
                data = await stream.receive_some()
                assert parse(data)[0] == status, first
        here.server.files["/report"] = Path("/nowhere/index.html")
        assert (await here.ask("GET", f"/report?token={here.token}"))[0] == 404
        assert (await here.ask("GET", f"/?token={here.token}"))[0] == 200


async def test_silent_strangers_do_not_keep_anybody_away() -> None:
    async with site() as here:
        silent = [await here.connect() for _ in range(STRANGERS_MAX + 3)]
        for stream in silent[::2]:
            await stream.send_all(b"GET / HTTP/1.1\r\nx-slow: ")
        assert (await here.ask("GET", f"/?token={here.token}"))[0] == 200
        for stream in silent[:3]:  # the oldest had to go
            with suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
        for stream in silent:
            await stream.aclose()


async def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketbed.chaos.live.http.READ_S", 0.02)
    async with site() as here:
        for part in (b"", b"GET / HTTP/1.1\r\nx-slow: "):
            async with await here.connect() as stream:
                if part:
                    await stream.send_all(part)
                assert await stream.receive_some() == b""


async def test_the_cookie_looks_and_does_not_press() -> None:
    """Every other server on 127.0.0.1 is shown the cookie too."""
    async with site() as here:
        cookie = here.server.access.cookie.partition(";")[0]
        status, _, body = await here.ask("GET", "/", {"cookie": cookie})
        assert status == 200
        assert here.token.encode() not in body
        stolen = {"cookie": cookie, "x-rocketbed-token": cookie.partition("=")[2]}
        status, text = await here.press({"action": "kill", "name": "b1"}, stolen)
        assert status == 403
        assert "open the address" in text
        assert here.desk.pressed == []
