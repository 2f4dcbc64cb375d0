"""A compare-and-swap store in etcd (3.4 or newer), for several controllers of which one is active.

Uses etcd's JSON gateway. Keys below `/rocketbed/CLUSTER/`: `active`, whose value names the process
that may swap and which expires with its lease; `now/NAME`, the newest version of a value;
`was/NAME/VERSION`, the earlier ones. The *fence* is the revision at which `active` was created:
every swap requires that it is unchanged, so that a superseded controller changes nothing, whatever
its clock says. Neither TLS nor passwords yet: let only controllers reach this etcd.
"""

import base64
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, unquote

import h11
import orjson
import trio

from rocketbed.replication.pace import Seldom
from rocketbed.replication.register.cas import (
    CHANGES_MAX,
    CasBroken,
    CasSuperseded,
    CasUnknown,
    Versioned,
)
from rocketbed.world.api import Address, Stream, World

CLAIM_TTL_S: Final = 2
"""Of the claim's lease. etcd raises lower values to this, 1.5 times its own election time."""
CLAIM_ASK_S: Final = 0.2
"""Interval at which a waiting controller checks for the active one."""
ANSWER_S: Final = 1.0
"""Within the claim's time, so that one silent member does not cost it."""
ANSWER_MAX: Final = 64 << 20
"""Bytes; a thousand versions of an entry are far below."""
READ_SIZE: Final = 64 << 10


class EtcdCas:
    """Store in etcd; see `rocketbed.replication.register.cas.CasStore`. An async context
    manager."""

    def __init__(self, world: World, endpoints: list[Address], cluster: str) -> None:
        """`endpoints` are the client addresses of etcd's members, tried in turn."""
        self._world = world
        self._endpoints = list(endpoints)
        self._root = f"/rocketbed/{quote(cluster, safe='')}"
        self._holder = f"{world.name} {world.random.getrandbits(64):016x}"
        self._lease = ""
        self._fence = ""
        """Create revision of `active` while it is ours; empty before and after."""
        self._renewed = 0.0
        """Time at which the latest answered renewal was sent, seconds of the clock of leases."""
        self._saying = Seldom()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def claim(self) -> None:
        """Implement `CasStore.claim`; tries until etcd answers."""
        while not self._fence:
            try:
                await self._try_to_claim()
            except CasUnknown as exc:
                self._say(exc)
            if not self._fence:
                await trio.sleep(CLAIM_ASK_S)

    async def keep(self) -> None:
        """Implement `CasStore.keep`: also raises if etcd did not answer for the claim's whole
        time."""
        while True:
            sent_at = self._world.clock.monotonic()
            left_s = self._renewed + CLAIM_TTL_S - sent_at
            if not self._fence or left_s <= 0:
                raise self._superseded("its claim was not renewed in time")
            try:
                with trio.move_on_after(left_s):
                    if await self._renew():
                        self._renewed = sent_at
                    else:
                        raise self._superseded("its claim has run out")
            except CasUnknown as exc:
                self._say(exc)
            await trio.sleep(CLAIM_TTL_S / 6)

    async def read(self, name: str) -> Versioned | None:
        """Implement `CasStore.read`."""
        values = (await self._post("kv/range", {"key": _b64(self._now(name))})).get("kvs", [])
        return _versioned(values[0]) if values else None

    async def swap(self, name: str, value: bytes, *, after: int) -> bool:
        """Implement `CasStore.swap`."""
        if not self._fence:
            raise self._superseded("it has no claim")
        fence = self._fence
        content = base64.b64encode(value).decode()
        version = after + 1
        put = [
            {"request_put": {"key": _b64(self._now(name)), "value": content}},
            {"request_put": {"key": _b64(self._was(name, version)), "value": content}},
        ]
        if version > CHANGES_MAX + 1:
            oldest = _b64(self._was(name, version - CHANGES_MAX - 1))
            put.append({"request_delete_range": {"key": oldest}})
        answer = await self._post(
            "kv/txn",
            {
                "compare": [
                    _compare(self._active(), "CREATE", "create_revision", fence),
                    _compare(self._now(name), "VERSION", "version", str(after)),
                ],
                "success": put,
                "failure": [{"request_range": {"key": _b64(self._active())}}],
            },
        )
        if answer.get("succeeded"):
            return True
        active = answer["responses"][0]["response_range"].get("kvs", [])
        if not active or active[0]["create_revision"] != fence:
            raise self._superseded("another controller is active")
        return False

    async def names(self) -> list[str]:
        """Implement `CasStore.names`."""
        prefix = f"{self._root}/now/"
        values = await self._range(prefix, keys_only=True)
        return sorted(unquote(_text(value["key"])[len(prefix) :]) for value in values)

    async def changes(self, name: str) -> list[Versioned]:
        """Implement `CasStore.changes`."""
        prefix = self._was(name, 0)[:-10]
        return [
            Versioned(int(_text(value["key"])[len(prefix) :]), _bytes(value.get("value", "")))
            for value in await self._range(prefix)
        ]

    async def aclose(self) -> None:
        """Implement `CasStore.aclose`; it revokes the claim, so that the next process need not
        wait."""
        self._fence = ""
        lease, self._lease = self._lease, ""
        with trio.move_on_after(ANSWER_S, shield=True):
            try:
                if lease:
                    await self._post("lease/revoke", {"ID": lease})
            except (CasUnknown, CasBroken):
                pass  # the lease expires anyway

    async def _try_to_claim(self) -> None:
        sent_at = self._world.clock.monotonic()
        if not self._lease or not await self._renew():
            self._lease = (await self._post("lease/grant", {"TTL": CLAIM_TTL_S}))["ID"]
        key, holder = _b64(self._active()), _b64(self._holder)
        await self._post(
            "kv/txn",
            {
                "compare": [_compare(self._active(), "VERSION", "version", "0")],
                "success": [{"request_put": {"key": key, "value": holder, "lease": self._lease}}],
            },
        )
        # Read instead of using the answer: an earlier try whose answer was lost may have made it
        # ours.
        active = (await self._post("kv/range", {"key": key})).get("kvs", [])
        if active and active[0]["value"] == holder and active[0].get("lease") == self._lease:
            self._fence, self._renewed = active[0]["create_revision"], sent_at

    async def _renew(self) -> bool:
        answer = await self._post("lease/keepalive", {"ID": self._lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def _say(self, error: CasUnknown) -> None:
        if self._saying.is_due():
            self._world.log.warning("register.etcd_silent", error=str(error))

    def _superseded(self, reason: str) -> CasSuperseded:
        self._fence = ""
        return CasSuperseded(f"{self._world.name} may not change the register: {reason}")

    async def _range(self, prefix: str, *, keys_only: bool = False) -> list[dict[str, Any]]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        query = {"key": _b64(prefix), "range_end": _b64(end), "keys_only": keys_only}
        values: list[dict[str, Any]] = (await self._post("kv/range", query)).get("kvs", [])
        return values

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask one member after another until one can be reached; return its answer."""
        reasons = []
        for _ in self._endpoints:
            host, port = self._endpoints[0]
            try:
                with trio.fail_after(ANSWER_S):
                    stream = await self._world.network.connect(host, port)
            except (OSError, trio.TooSlowError) as exc:
                reasons.append(f"{host}:{port}: {_reason(exc)}")
                self._rotate()  # it did not get the request: the next one can
                continue
            where = f"etcd at {host}:{port}"
            try:
                with trio.fail_after(ANSWER_S):
                    async with stream:
                        status, answer = await _exchange(stream, host, f"/v3/{path}", body)
                content = orjson.loads(answer)
            except (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError) as exc:
                self._rotate()
                raise CasUnknown(f"{where}: {_reason(exc)}") from exc
            except h11.ProtocolError as exc:
                raise CasBroken(f"{where} does not speak HTTP: {exc}") from exc
            if status == HTTPStatus.OK:
                return dict(content)
            reason = f"{where}: {status} {content.get('error', content)}"
            if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise CasBroken(f"{reason}: is this etcd 3.4 or newer, without passwords?")
            self._rotate()
            raise CasUnknown(reason)
        raise CasUnknown("no member of etcd can be reached: " + "; ".join(reasons))

    def _rotate(self) -> None:
        self._endpoints.append(self._endpoints.pop(0))

    def _active(self) -> str:
        return f"{self._root}/active"

    def _now(self, name: str) -> str:
        return f"{self._root}/now/{quote(name, safe='')}"

    def _was(self, name: str, version: int) -> str:
        return f"{self._root}/was/{quote(name, safe='')}/{version:010d}"


async def _exchange(
    stream: Stream, host: str, path: str, body: dict[str, Any]
) -> tuple[int, bytes]:
    """Send one request on a separate connection; return status and body of the answer."""
    content = orjson.dumps(body)
    http = h11.Connection(h11.CLIENT)
    headers = [
        ("Host", host),
        ("Connection", "close"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(content))),
    ]
    request = http.send(h11.Request(method="POST", target=path, headers=headers))
    assert request is not None
    await stream.send_all(request + content)
    http.send(h11.Data(data=content))
    http.send(h11.EndOfMessage())
    status, answer = 0, bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = bytes(await stream.receive_some(READ_SIZE))
            if not data:
                raise ValueError("the connection ended before the answer did")
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            answer += event.data
            if len(answer) > ANSWER_MAX:
                raise ValueError(f"an answer of more than {ANSWER_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(answer)


def _reason(exc: Exception) -> str:
    return "no answer in time" if isinstance(exc, trio.TooSlowError) else str(exc)


def _compare(key: str, target: str, field: str, value: str) -> dict[str, str]:
    return {"key": _b64(key), "target": target, "result": "EQUAL", field: value}


def _versioned(value: dict[str, Any]) -> Versioned:
    return Versioned(int(value["version"]), _bytes(value.get("value", "")))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _text(text: str) -> str:
    return _bytes(text).decode()
