"""Sharing of a topic's queues among the members of a group.

Each member asks a broker for the members and computes its own share (`allocate.py`). They agree as
long as all see the same lists, so all ask the same broker: the first by name that answers.
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

MembersAt = dict[Address, list[str] | None]
"""Ids of the group's members by broker; None if it did not answer."""


class Sharing:
    """Share of one member."""

    def __init__(self, session: Session, group: str, allocation: Allocation) -> None:
        self._session = session
        self._group = group
        self._allocation = allocation

    async def own(self, route: Route, members_at: MembersAt) -> list[MessageQueue] | None:
        """Return this member's queues of a route; None when no broker answered.

        `members_at` has the recent answers of brokers for another topic, and gets further ones.
        """
        for name in sorted(route.brokers):
            for _, address in sorted(route.brokers[name].items()):
                if address not in members_at:
                    members_at[address] = await self._try_members(address)
                if (members := members_at[address]) is not None:
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
        """Return the ids of the members at a broker, sorted; None when it does not count this
        client yet.

        Raises `RemotingError`, `ProtocolError`.
        """
        for _ in range(2):
            header = ConsumerGroupRequest(consumerGroup=self._group)
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.encode())
            answer = await self._session.ask(address, command, timeout_s=TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS:
                ids = ConsumerIdList.decode(answer.body).consumer_id_list
                if self._session.client_id in ids:
                    return sorted(ids)
            await self._session.heartbeat(address)
        return None
