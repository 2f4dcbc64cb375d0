"""Messages of two groups: sent several at once, pulled, and waited for by long polls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from rocketbed.wire.command import Command, ResponseCode
from rocketbed.wire.headers_admin import ResetOffsetRequest
from rocketbed.wire.message import decode_messages
from tests.model.broker import Peer
from tests.model.groups_model import GROUPS, Clients, Code, Place

REPORTED_S: Final = 30.0
"""Time for which a group's pulls are told of a reset."""
TAGS: Final = ("red", "blue")
MAY_WAIT: Final = 2
"""Flag of a long poll."""


class Readers(Clients):
    """Clients that send and read."""

    _number = 0

    async def send(self) -> None:
        """Send up to six messages at the same time."""
        _, peer = await self.somebody()
        placed: dict[tuple[str, int], dict[int, tuple[bytes, str]]] = {}

        async def send_message(topic: str, queue: int, body: bytes, tag: str) -> None:
            answer = await peer.send(b=topic, e=queue, body=body, properties={"TAGS": tag})
            assert answer.fields["queueId"] == str(queue), f"sent: {answer.fields}, not {queue}"
            offset = int(answer.fields["queueOffset"])
            placed.setdefault((topic, queue), {})[offset] = (body, tag)

        async with trio.open_nursery() as nursery:
            for _ in range(self.random.choice((1, 1, 3, 6))):
                self._number += 1
                body, tag = b"%d" % self._number * 3, self.random.choice(TAGS)
                nursery.start_soon(send_message, *self.queue(), body, tag)
        for queue, by_offset in placed.items():
            stored = self.model.sent.setdefault(queue, [])
            offsets = list(range(len(stored), len(stored) + len(by_offset)))
            assert sorted(by_offset) == offsets, f"sent: {queue}: {by_offset}, not {offsets}"
            stored += [by_offset[offset] for offset in offsets]

    async def pull(self) -> None:
        """Pull, perhaps with a position to commit, which counts unless the pull is redirected."""
        _, peer = await self.somebody()
        place = group, topic, queue = self.place()
        end = self.model.end(topic, queue)
        offset = self.random.randrange(end + 1)
        fields: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": queue}
        target = self._redirection(place, offset)
        if target is not None:
            answer = await peer.pull(ResponseCode.PULL_OFFSET_MOVED, queueOffset=offset, **fields)
            actual = answer.fields["nextBeginOffset"]
            assert actual == str(target), f"reset: {place}: {actual}, expected {target}"
            return
        tag = self.random.choice((*TAGS, "*"))
        available = self.model.sent.get((topic, queue), [])[offset:]
        bodies = [body for body, message_tag in available if tag in (message_tag, "*")][:32]
        code = ResponseCode.SUCCESS if bodies else ResponseCode.PULL_RETRY_IMMEDIATELY
        code = code if available else ResponseCode.PULL_NOT_FOUND
        commits, position = self.random.random() < 0.5, self.random.randrange(-1, end + 2)
        fields |= {"sysFlag": 4 | commits, "commitOffset": position}
        answer = await peer.pull(code, queueOffset=offset, tags=tag, **fields)
        self.model.pulled[place] = offset
        if commits and position >= 0:
            self.model.stands[place] = position
        actual_bodies = [one.body for one in decode_messages(answer.body)] if bodies else []
        assert actual_bodies == bodies, f"pull: {place} from {offset}: {len(actual_bodies)}"

    def _redirection(self, place: Place, offset: int) -> int | None:
        """Return the target of a reset; None once a pull comes from it."""
        if place not in self.model.resets:
            return None
        target, until = self.model.resets[place]
        now = trio.current_time()
        until = min(until, now + REPORTED_S)
        if target == offset or now > until:
            del self.model.resets[place]
            return None
        self.model.resets[place] = (target, until)
        return target

    def _long_poll(self, place: Place, **changes: Any) -> Command:
        group, topic, queue = place
        return Peer.pull_request(
            consumerGroup=group, topic=topic, queueId=queue,
            queueOffset=self.model.end(topic, queue), sysFlag=4 | MAY_WAIT,
            suspendTimeoutMillis=30_000, **changes,
        )  # fmt: skip

    async def hold(self) -> None:
        """Let a pull wait at the end for a message with its tag, or for a reset.

        Only the node's check of all long polls, each 5 s, may wake it before: not twice in a row.
        """
        place = self.place()
        if place not in self.model.resets and not await self._holds(place):
            assert await self._holds(place), f"hold: {place}: woken by another tag"

    async def _holds(self, place: Place) -> bool:
        _, peer = await self.somebody()
        operator = await self.peer("operator")
        group, topic, queue = place
        end, command = self.model.end(topic, queue), self._long_poll(place, tags="red")
        connection, answers = peer.connection, list[Command]()
        assert connection is not None

        async def pull() -> None:
            answers.append(await connection.request(command, timeout_s=60))

        self.model.pulled[place] = end
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(0.5)
            await self._put(operator, topic, queue, "blue")
            await trio.sleep(0.5)
            if answers:
                return False
            if self.random.random() < 0.5:
                await self._put(operator, topic, queue, "red")
            else:
                header = ResetOffsetRequest(
                    topic=topic, group=group, isForce=True, queueId=queue, offset=0, timestamp=0
                )
                code = Code.INVOKE_BROKER_TO_RESET_OFFSET
                await operator.ask(code, header.encode(), 0)
                self.model.stands[place] = 0
                if end:
                    self.model.resets[place] = (0, trio.current_time() + REPORTED_S)
            await trio.sleep(0.5)
            assert bool(answers), f"hold: {place} is not answered"
        return True

    @asynccontextmanager
    async def held(self, topic: str, queue: int) -> AsyncIterator[list[Command]]:
        """Yield the answers of a pull that waits at the end of a queue, unless that is its
        beginning; it must be answered by the end of the context."""
        place, answers = (GROUPS[0], topic, queue), list[Command]()
        _, peer = await self.somebody()
        command, connection = self._long_poll(place), peer.connection
        assert connection is not None

        async def pull() -> None:
            answers.append(await connection.request(command, timeout_s=60))

        async with trio.open_nursery() as nursery:
            is_held = self.model.end(topic, queue) > 0 and place not in self.model.resets
            if is_held:
                nursery.start_soon(pull)
                await trio.sleep(0.1)
                assert not answers, f"hold: {answers} at the end of {topic}/{queue}"
            yield answers
            assert len(answers) == is_held, f"hold: {topic}/{queue}: {len(answers)} answers"
            nursery.cancel_scope.cancel()

    async def _put(self, peer: Peer, topic: str, queue: int, tag: str) -> None:
        await peer.send(b=topic, e=queue, body=tag.encode(), properties={"TAGS": tag})
        self.model.sent.setdefault((topic, queue), []).append((tag.encode(), tag))
