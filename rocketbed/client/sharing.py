"""Who reads which queue: members of a group share the queues of a topic out among themselves.

Each of them asks a broker who the members are, and works out its own part (`allocate.py`). They
agree as long as all see the same lists, so all ask the same broker: the first by name that answers.
"""

from typing import Final

from rocketbed.client.allocate import Allocation
from rocketbed.client.routes import Route
from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import ConsumerIdList, MessageQueue
from rocketbed.wire.command import RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError
from rocketbed.wire.headers import ConsumerGroupRequest
from rocketbed.world.api import Address

TIMEOUT_S: Final = 3.0

Known = dict[Address, list[str] | None]
"""By broker, ids of the group's members; None where it did not tell."""


class Sharing:
    """The part of one member."""

    def __init__(self, session: Session, group: str, allocation: Allocation) -> None:
        self._session = session
        self._group = group
        self._allocation = allocation

    async def own(self, route: Route, known: Known) -> list[MessageQueue] | None:
        """The queues of a route that are ours; None when no broker could tell. `known` is what
        brokers answered a moment ago, for another topic; more is added."""
        for name in sorted(route.brokers):
            for _, address in sorted(route.brokers[name].items()):
                if address not in known:
                    known[address] = await self._try_members(address)
                if (members := known[address]) is not None:
                    queues = sorted(route.readable)
                    return self._allocation(self._session.client_id, members, queues)
        return None

    async def _try_members(self, address: Address) -> list[str] | None:
        try:
            return await self._members(address)
        except (RemotingError, ProtocolError) as exc:
            self._session.world.log.info("client.members_not_known", error=str(exc))
            return None

    async def _members(self, address: Address) -> list[str] | None:
        """Ids of the members as a broker has them, sorted; None when it does not count us yet.

        Raises `RemotingError`, `ProtocolError`.
        """
        for _ in range(2):
            header = ConsumerGroupRequest(consumerGroup=self._group)
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.encode())
            answer = await self._session.ask(address, command, timeout_s=TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS:
                found = ConsumerIdList.decode(answer.body).consumer_id_list
                if self._session.client_id in found:
                    return sorted(found)
            await self._session.heartbeat(address)
        return None
