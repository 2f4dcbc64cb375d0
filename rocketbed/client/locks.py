"""Locks of queues at their brokers, for groups whose messages are handled in order (wire.md 6.6).

A broker keeps a lock for a minute from when it was asked for last; whoever shares queues out asks
again each time, and one that could not be asked counts as lost.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from rocketbed.client.routes import Route
from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import LockedQueues, LockQueues, MessageQueue
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError

TIMEOUT_S: Final = 3.0


class Locks:
    """Those of one member of a group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def hold(self, route: Route, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock queues, or keep them locked; those that we hold now."""
        held: list[MessageQueue] = []
        for answer in await self._ask(RequestCode.LOCK_BATCH_MQ, route, queues):
            if answer.code == ResponseCode.SUCCESS:
                with suppress(ProtocolError):
                    held += LockedQueues.decode(answer.body).lock_ok_mq_set
        return sorted(held)

    async def release(self, route: Route, queues: Iterable[MessageQueue]) -> None:
        """Let others have them."""
        await self._ask(RequestCode.UNLOCK_BATCH_MQ, route, queues)

    async def _ask(
        self, code: RequestCode, route: Route, queues: Iterable[MessageQueue]
    ) -> list[Command]:
        """What the masters of queues answer, as far as they do."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        answers = []
        for name, wanted in sorted(by_broker.items()):
            address = route.master(name)
            if address is None:
                continue
            body = LockQueues(
                client_id=self._session.client_id, consumer_group=self._group, mq_set=wanted
            )
            try:
                command = request(code, {}, body.encode())
                answers.append(await self._session.ask(address, command, timeout_s=TIMEOUT_S))
            except RemotingError as exc:
                self._session.world.log.info("client.not_locked", broker=name, error=str(exc))
        return answers
