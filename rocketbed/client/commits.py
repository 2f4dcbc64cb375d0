"""Commits of a consumer's positions, queue by queue."""

from collections.abc import Awaitable, Callable, Iterable

import trio

from rocketbed.client.flow import Flow
from rocketbed.client.local import LocalPositions, Positions
from rocketbed.client.pulls import describe
from rocketbed.client.subscriptions import Subscriptions
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import RocketbedError
from rocketbed.world.api import World


class Commits:
    """Commits the finished messages of the queues that one consumer reads."""

    def __init__(
        self, world: World, group: str, subscriptions: Subscriptions, positions: Positions
    ) -> None:
        self._world = world
        self._group = group
        self._subscriptions = subscriptions
        self._positions = positions
        self._local = positions if isinstance(positions, LocalPositions) else None

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Commit a position of any queue. Raises `ClientError`, `RemotingError`."""
        flow = self._subscriptions.flows.get(queue)
        if flow is None:
            await self._positions.commit(self._group, queue, offset)
        else:
            await self._store(flow, offset)

    async def all(self) -> None:
        """Commit every queue. Raises the first failure; some queues may have been committed
        then."""
        failures: list[RocketbedError] = []

        async def store(flow: Flow) -> bool:
            try:
                await self._store(flow, flow.progress.done)
            except RocketbedError as exc:
                failures.append(exc)
                return False
            return True

        await self._at_brokers(store, self._subscriptions.flows.values())
        if failures:
            raise failures[0]

    async def try_all(self) -> None:
        """Commit every queue; those whose broker is unreachable are left for the next time."""
        await self.try_some(self._subscriptions.flows.values())

    async def try_some(self, flows: Iterable[Flow]) -> None:
        """Commit these queues; those whose broker is unreachable are left for the next time."""
        await self._at_brokers(self._try_one, flows)

    async def _try_one(self, flow: Flow) -> bool:
        done = flow.progress.done
        if done == flow.committed:
            return True
        try:
            await self._store(flow, done)
        except RocketbedError as exc:
            self._world.log.warning(
                "client.not_committed", queue=describe(flow.queue), error=str(exc)
            )
            return False
        return True

    async def try_forever(self, pause_s: float) -> None:
        """Commit every queue, every `pause_s` seconds, until cancelled."""
        while True:
            await trio.sleep(pause_s)
            await self.try_all()

    async def _store(self, flow: Flow, offset: int) -> None:
        flow.reported, flow.committed = offset if self._local is None else None, None
        await self._positions.commit(self._group, flow.queue, offset)
        flow.committed = offset

    async def _at_brokers(
        self, store: Callable[[Flow], Awaitable[bool]], all_flows: Iterable[Flow]
    ) -> None:
        """Store what is not stored yet, at all brokers at once, since one may hang; at each broker,
        or in the file, until the first failure."""
        flows: dict[str, list[Flow]] = {}
        for flow in all_flows:
            # Another topic of this name may be created, and its queues begin at 0.
            is_gone = flow.refused_code == ResponseCode.TOPIC_NOT_EXIST
            if flow.progress.done != flow.committed and not is_gone:
                place = flow.queue.broker_name if self._local is None else self._local.path
                flows.setdefault(place, []).append(flow)
                if self._local is not None:
                    self._local.prepare({flow.queue: flow.progress.done})

        async def at_one(some: list[Flow]) -> None:
            for flow in some:
                if not await store(flow):
                    return

        async with trio.open_nursery() as nursery:
            for some in flows.values():
                nursery.start_soon(at_one, some)
