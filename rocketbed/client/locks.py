"""Locks of queues at their brokers, for groups with ordered messages (wire.md 6.6).

A broker keeps a lock for a minute after the last request for it. The sharing of queues renews locks
each time, and a lock that could not be renewed counts as lost.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import trio

from rocketbed.client.errors import ClientError
from rocketbed.client.routes import Route
from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import LockedQueues, LockQueues, MessageQueue
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import ProtocolError

TIMEOUT_S: Final = 3.0
ANSWERS_S: Final = 1.0
"""Longest wait for the client's own lock requests under way, seconds."""


class Locks:
    """Locks of one member of a group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.requested: set[MessageQueue] = set()
        """Queues that may be locked by this member: requested, and not released since."""
        self._asking = 0
        """Number of lock requests under way."""
        self._answered = trio.Event()
        self._is_over = False

    async def hold(self, route: Route, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock queues, or renew their locks; return those that are locked now."""
        requested = [] if self._is_over else list(queues)
        locked: list[MessageQueue] = []
        self.requested.update(requested)
        self._asking += 1
        try:
            for answer in await self._ask(RequestCode.LOCK_BATCH_MQ, route, requested):
                if answer.code == ResponseCode.SUCCESS:
                    with suppress(ProtocolError):
                        locked += LockedQueues.decode(answer.body).lock_ok_mq_set
        finally:
            self._asking -= 1
            self._answered.set()
        return sorted(locked)

    async def release(self, route: Route, queues: Iterable[MessageQueue]) -> None:
        """Release locks of queues."""
        released = list(queues)
        await self._ask(RequestCode.UNLOCK_BATCH_MQ, route, released)
        self.requested.difference_update(released)

    async def release_all(self) -> None:
        """Release all locks that this member has or may have, and lock no more."""
        self._is_over = True
        with trio.move_on_after(ANSWERS_S):  # a broker may carry out a lock after its release
            while self._asking:
                self._answered = trio.Event()
                await self._answered.wait()
        for topic in dict.fromkeys(queue.topic for queue in sorted(self.requested)):
            with suppress(ClientError):
                route = await self._session.routes.get(topic)
                await self.release(
                    route, [queue for queue in sorted(self.requested) if queue.topic == topic]
                )

    async def _ask(
        self, code: RequestCode, route: Route, queues: Iterable[MessageQueue]
    ) -> list[Command]:
        """Return the answers of the queues' masters, without those that do not answer."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        answers = []
        for name, broker_queues in sorted(by_broker.items()):
            address = route.master(name)
            if address is None:
                continue
            body = LockQueues(
                client_id=self._session.client_id, consumer_group=self._group, mq_set=broker_queues
            )
            try:
                command = request(code, {}, body.encode())
                answers.append(await self._session.ask(address, command, timeout_s=TIMEOUT_S))
            except RemotingError as exc:
                self._session.world.log.info("client.not_locked", broker=name, error=str(exc))
        return answers
