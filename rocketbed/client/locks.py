"""Locks of queues at their brokers, for groups whose messages are handled in order (wire.md 6.6).

A broker keeps a lock for a minute from when it was asked for last; whoever shares queues out asks
again each time, and one that could not be asked counts as lost.
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
"""For questions that are under way at our end."""


class Locks:
    """Those of one member of a group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.asked: set[MessageQueue] = set()
        """Those that may be locked for us: asked for, and not let go since."""
        self._asking = 0
        """Questions that are under way."""
        self._answered = trio.Event()
        self._is_over = False

    async def hold(self, route: Route, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock queues, or keep them locked; those that we hold now."""
        wanted = [] if self._is_over else list(queues)
        held: list[MessageQueue] = []
        self.asked.update(wanted)
        self._asking += 1
        try:
            for answer in await self._ask(RequestCode.LOCK_BATCH_MQ, route, wanted):
                if answer.code == ResponseCode.SUCCESS:
                    with suppress(ProtocolError):
                        held += LockedQueues.decode(answer.body).lock_ok_mq_set
        finally:
            self._asking -= 1
            self._answered.set()
        return sorted(held)

    async def release(self, route: Route, queues: Iterable[MessageQueue]) -> None:
        """Let others have them."""
        released = list(queues)
        await self._ask(RequestCode.UNLOCK_BATCH_MQ, route, released)
        self.asked.difference_update(released)

    async def release_all(self) -> None:
        """Let others have all that is, or may be, locked for us, and lock no more."""
        self._is_over = True
        with trio.move_on_after(ANSWERS_S):  # a broker may carry out a lock after its release
            while self._asking:
                self._answered = trio.Event()
                await self._answered.wait()
        for topic in dict.fromkeys(queue.topic for queue in sorted(self.asked)):
            with suppress(ClientError):
                route = await self._session.routes.get(topic)
                await self.release(route, [one for one in sorted(self.asked) if one.topic == topic])

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
