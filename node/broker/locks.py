"""Locks of queues, which ordered consumers hold while they read them (wire.md 6.6; 41, 42).

A lock lasts a minute from its holder's latest request, on a monotonic clock. It outlives its
holder's connection: a client that lost it may still be processing messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

import trio

from rocketbed.node.broker.changed_queues import ChangedQueues
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
    announced: float = -inf
    """Time of its last announcement to the other replicas: repeated each minute, since a starting
    replica reads only the newest ones."""


class QueueLocks:
    """Queues of this broker that clients of consumer groups hold."""

    def __init__(self, broker_name: str, topics: Topics) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self.changed = ChangedQueues()
        """By `topic@group`, queues whose holder changed."""

    def lock(self, command: Command, connection: Connection) -> Command:
        """41: lock queues, and return those that the client holds now. Raises `BodyError`."""
        lock_request = LockQueues.decode(command.body)
        now, held = trio.current_time(), self._groups.setdefault(lock_request.consumer_group, {})
        granted = [queue for queue in lock_request.mq_set if self._is_ours(queue)]
        granted = [
            queue for queue in granted if _is_free(held.get(queue), lock_request.client_id, now)
        ]
        for queue in granted:
            old = held.get(queue)
            lock = held[queue] = _Lock(lock_request.client_id, now + LASTS_S)
            if (
                old is not None
                and old.client_id == lock.client_id
                and now < old.announced + LASTS_S
            ):
                lock.announced = old.announced
            else:
                lock.announced = now
                self._note(lock_request.consumer_group, queue)
        if not held:
            del self._groups[lock_request.consumer_group]
        body = LockedQueues(lock_ok_mq_set=granted).encode()
        return answer(command, ResponseCode.SUCCESS, None, {}, body)

    def unlock(self, command: Command, connection: Connection) -> Command:
        """42: release queues that the client holds. Raises `BodyError`."""
        lock_request = LockQueues.decode(command.body)
        held = self._groups.get(lock_request.consumer_group, {})
        for queue in lock_request.mq_set:
            lock = held.get(queue)
            if lock is not None and lock.client_id == lock_request.client_id:
                del held[queue]
                self._note(lock_request.consumer_group, queue)
        if not held:
            self._groups.pop(lock_request.consumer_group, None)
        return answer(command, ResponseCode.SUCCESS, None, {})

    def forget_expired(self) -> None:
        """Drop expired locks."""
        now = trio.current_time()
        for group, held in list(self._groups.items()):
            for queue in [queue for queue, lock in held.items() if lock.until <= now]:
                del held[queue]
                self._note(group, queue)
            if not held:
                del self._groups[group]

    # --- in a group with failover: a member may be busy with queues that it locked at the former
    # leader

    def take_changes(self) -> dict[str, dict[int, str]]:
        """Return by `topic@group` and queue the present holder, empty for none, of each lock that
        changed since the last call."""
        changes: dict[str, dict[int, str]] = {}
        for key, queues in self.changed.take().items():
            topic, _, group = key.rpartition("@")
            held = self._groups.get(group, {})
            locks = {queue: held.get(self._queue(topic, queue)) for queue in queues}
            changes[key] = {queue: lock.client_id if lock else "" for queue, lock in locks.items()}
        return changes

    def apply(self, changes: Mapping[str, Mapping[int, str]]) -> None:
        """Apply the result of another broker's `take_changes`."""
        until = trio.current_time() + LASTS_S
        for key, queues in changes.items():
            topic, _, group = key.rpartition("@")
            held = self._groups.setdefault(group, {})
            for queue, client_id in queues.items():
                held.pop(self._queue(topic, queue), None)
                if client_id:
                    held[self._queue(topic, queue)] = _Lock(client_id, until)
            if not held:
                del self._groups[group]

    def renew(self) -> None:
        """Extend all of them, as their holders have not reached this broker yet."""
        until = trio.current_time() + LASTS_S
        for held in self._groups.values():
            for lock in held.values():
                lock.until = until

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue_id)

    def _note(self, group: str, queue: MessageQueue) -> None:
        self.changed.note(f"{queue.topic}@{group}", queue.queue_id)

    def _is_ours(self, queue: MessageQueue) -> bool:
        # Clients ask each broker for its own queues; the check bounds the number of locks.
        config = self._topics.get(queue.topic)
        if config is None or queue.broker_name != self._broker_name:
            return False
        return 0 <= queue.queue_id < config.queue_nums


def _is_free(lock: _Lock | None, client_id: str, now: float) -> bool:
    return lock is None or lock.client_id == client_id or lock.until <= now
