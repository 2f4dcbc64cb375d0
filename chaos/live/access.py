"""Access control of the live page: only holders of the token, and no page of another site.

Everything listens on 127.0.0.1, but every page in the user's browser can send requests there, and a
name of another site may be made to point there (DNS rebinding). So a request must name a host under
which we are known, and carry the token in the address, or the cookie that the page sets. A request
that changes something must carry the token in a header, which no form and no foreign script can
send, and must come from our own page.

A cookie knows hosts and no ports, so a browser sends it to every other server on 127.0.0.1 too. It
therefore holds a secret of its own, which permits looking and not pressing; the page keeps the
token where only pages of this port can read it.
"""

import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final

TOKEN_HEADER: Final = "x-rocketbed-token"
NAMES: Final = ("127.0.0.1", "localhost")


class Access:
    def __init__(self, port: int, token: str | None = None) -> None:
        """Without `token` a new one is drawn."""
        self.port = port
        self.token = secrets.token_urlsafe(24) if token is None else token
        self._cookie_name = f"rocketbed-{port}"
        """Named after the port: cookies know hosts only, and there may be two harnesses."""
        self._view_secret = secrets.token_urlsafe(24)
        self._hosts = {f"{name}:{port}" for name in NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    @property
    def address(self) -> str:
        return f"http://{NAMES[0]}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """A `Set-Cookie` line."""
        return f"{self._cookie_name}={self._view_secret}; Path=/; HttpOnly; SameSite=Strict"

    def refusal(
        self, method: str, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> str | None:
        """Return why a request is refused; None if it is accepted."""
        if headers.get("host", "").lower() not in self._hosts:
            return "this page is served only at the address that the harness printed"
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            return "requests from other sites are refused"
        if method != "GET":
            if not _is_same(headers.get(TOKEN_HEADER, ""), self.token):
                return (
                    f"a request that changes something needs the token as {TOKEN_HEADER}: open the"
                    " address that the harness printed, all of it"
                )
            return None
        by_token = _is_same(query.get("token", ""), self.token)
        if by_token or _is_same(self._of_cookie(headers), self._view_secret):
            return None
        return "wrong or no token: open the complete address that the harness printed"

    def _of_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie_name)
        except CookieError:
            return ""
        return "" if cookie is None else cookie.value


def _is_same(candidate: str, secret: str) -> bool:
    return secrets.compare_digest(candidate.encode(), secret.encode())
