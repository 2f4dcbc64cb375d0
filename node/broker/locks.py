"""Locks of queues, which ordered consumers hold while they read them (wire.md 6.6; 41, 42).

A lock lasts a minute from the last time that its holder asked for it, on a clock that nobody sets.
It outlives its holder's connection: a client that lost it may still be busy with messages.
"""

from dataclasses import dataclass
from typing import Final

import trio

from rocketbed.node.broker.topics import Topics
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import LockedQueues, LockQueues, MessageQueue
from rocketbed.wire.command import Command, ResponseCode, answer

LASTS_S: Final = 60.0


@dataclass(slots=True)
class _Lock:
    client_id: str
    until: float
    """On trio's clock."""


class QueueLocks:
    """Which client of a consumer group holds which queue of this broker."""

    def __init__(self, broker_name: str, topics: Topics) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, command: Command, connection: Connection) -> Command:
        """41: those of the queues that the client holds now. Raises `BodyError`."""
        wanted = LockQueues.decode(command.body)
        now, held = trio.current_time(), self._groups.setdefault(wanted.consumer_group, {})
        granted = [queue for queue in wanted.mq_set if self._is_ours(queue)]
        granted = [queue for queue in granted if _is_free(held.get(queue), wanted.client_id, now)]
        for queue in granted:
            held[queue] = _Lock(wanted.client_id, now + LASTS_S)
        if not held:
            del self._groups[wanted.consumer_group]
        body = LockedQueues(lock_ok_mq_set=granted).encode()
        return answer(command, ResponseCode.SUCCESS, None, {}, body)

    def unlock(self, command: Command, connection: Connection) -> Command:
        """42: give queues back that the client holds. Raises `BodyError`."""
        wanted = LockQueues.decode(command.body)
        held = self._groups.get(wanted.consumer_group, {})
        for queue in wanted.mq_set:
            lock = held.get(queue)
            if lock is not None and lock.client_id == wanted.client_id:
                del held[queue]
        if not held:
            self._groups.pop(wanted.consumer_group, None)
        return answer(command, ResponseCode.SUCCESS, None, {})

    def forget_expired(self) -> None:
        """Drop what nobody holds any more."""
        now = trio.current_time()
        for group, held in list(self._groups.items()):
            for queue in [queue for queue, lock in held.items() if lock.until <= now]:
                del held[queue]
            if not held:
                del self._groups[group]

    def _is_ours(self, queue: MessageQueue) -> bool:
        # Of others nobody asks us; what may be held is bounded by the queues that there are.
        config = self._topics.get(queue.topic)
        if config is None or queue.broker_name != self._broker_name:
            return False
        return 0 <= queue.queue_id < config.queue_nums


def _is_free(lock: _Lock | None, client_id: str, now: float) -> bool:
    return lock is None or lock.client_id == client_id or lock.until <= now
