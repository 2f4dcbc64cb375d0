"""Look-up of single messages: by the broker's id (33), by key and time (12)."""

from typing import Final

from rocketbed.client.errors import NoNameserver, NotFound, RequestRefused
from rocketbed.client.messages import Received
from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import ClusterInfo
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.headers import QueryMessageRequest, ViewMessageRequest
from rocketbed.wire.message import decode_message, decode_messages, parse_offset_message_id
from rocketbed.world.api import Address

UNIQUE_COUNT: Final = 32
"""Most copies of one message that are requested."""


class MessageSearch:
    """Queries brokers for messages."""

    def __init__(self, session: Session, *, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s

    async def by_offset_id(self, offset_id: str) -> Received:
        """Return the message of an offset id, from the broker whose address the id contains.

        Raises `NotFound` for an invalid id or one without a message, `RemotingError`.
        """
        try:
            host, port, offset = parse_offset_message_id(offset_id)
        except ValueError as exc:
            raise NotFound(
                f"{offset_id!r} is not an offset message id: expected 32 or 56 hex digits"
            ) from exc
        if not 0 < port <= 65_535 or offset < 0:
            raise NotFound(f"{offset_id} does not contain a broker address: it is a producer's id")
        command = request(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset).encode()
        )
        answer = await self._session.ask((host, port), command, timeout_s=self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise NotFound(f"broker {host}:{port}: {answer.remark or answer.code}")
        return Received.of(decode_message(answer.body), await self._broker_at((host, port)))

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
    ) -> list[Received]:
        """Return messages of a topic with a key, from one member of each broker; oldest first.

        Raises `NoRoute`, `RequestRefused`, and `RemotingError` when a broker cannot be asked.
        """
        header = QueryMessageRequest(
            topic=topic,
            key=key,
            maxNum=min(count, UNIQUE_COUNT) if unique else count,
            beginTimestamp=begin_ms,
            endTimestamp=end_ms,
            indexType="U" if unique else "K",
            uniqueKeyQuery=unique,
        )
        messages: list[Received] = []
        route = await self._session.routes.get(topic)
        for name, members in sorted(route.brokers.items()):
            answer = await self._ask_any(list(members.values()), header)
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            if answer.code != ResponseCode.SUCCESS:
                action = f"query of topic {topic} by key {key}"
                raise RequestRefused(action, f"broker {name}", answer.code, answer.remark)
            messages += [Received.of(item, name) for item in decode_messages(answer.body)]
        name_of = (lambda m: m.message_id == key) if unique else (lambda m: key in m.keys)
        matching = [m for m in messages if m.topic == topic and name_of(m)]
        return sorted(matching, key=lambda m: (m.stored_ms, m.physical_offset))[:count]

    async def _ask_any(self, addresses: list[Address], header: QueryMessageRequest) -> Command:
        """Return the answer of the first member that answers, beginning with the master. Raises
        `RemotingError`."""
        failure: RemotingError | None = None
        for address in addresses:
            command = request(RequestCode.QUERY_MESSAGE, header.encode())
            try:
                return await self._session.ask(address, command, timeout_s=self._timeout_s)
            except RemotingError as exc:
                failure = exc
        assert failure is not None, "a route has no broker without an address"
        raise failure

    async def _broker_at(self, address: Address) -> str:
        """Return the name of the broker at an address; the address itself if no nameserver knows
        it."""
        text = f"{address[0]}:{address[1]}"
        try:
            info = await self._session.nameservers.body(
                RequestCode.GET_BROKER_CLUSTER_INFO, "list of brokers", ClusterInfo.decode
            )
        except (NoNameserver, RequestRefused):
            return text
        table = info.broker_addr_table
        names = [name for name, data in table.items() if text in data.broker_addrs.values()]
        return names[0] if names else text
