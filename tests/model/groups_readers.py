"""Messages of two groups: sent several at once, pulled, waited for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from rocketbed.wire.command import Command, ResponseCode
from rocketbed.wire.headers_admin import ResetOffsetRequest
from rocketbed.wire.message import decode_messages
from tests.model.broker import Peer
from tests.model.groups_model import GROUPS, Clients, Code, Place

TOLD_S: Final = 30.0
"""How long a group's pulls are told of a reset."""
TAGS: Final = ("red", "blue")
HELD: Final = 2
"""The flag of a pull that may wait."""


class Readers(Clients):
    """Clients that send and read."""

    _number = 0

    async def send(self) -> None:
        """Up to six, none of which waits for the answer to another."""
        _, peer = await self.somebody()
        given: dict[tuple[str, int], dict[int, tuple[bytes, str]]] = {}

        async def one(topic: str, queue: int, body: bytes, tag: str) -> None:
            answer = await peer.send(b=topic, e=queue, body=body, properties={"TAGS": tag})
            assert answer.fields["queueId"] == str(queue), f"sent: {answer.fields} for {queue}"
            offset = int(answer.fields["queueOffset"])
            given.setdefault((topic, queue), {})[offset] = (body, tag)

        async with trio.open_nursery() as nursery:
            for _ in range(self.random.choice((1, 1, 3, 6))):
                self._number += 1
                body, tag = b"%d" % self._number * 3, self.random.choice(TAGS)
                nursery.start_soon(one, *self.queue(), body, tag)
        for queue, by_offset in given.items():
            known = self.model.sent.setdefault(queue, [])
            want = list(range(len(known), len(known) + len(by_offset)))
            assert sorted(by_offset) == want, f"sent: {queue}: {by_offset} for {want}"
            known += [by_offset[offset] for offset in want]

    async def pull(self) -> None:
        """With the position that it wants to be kept, or without; a pull that is sent elsewhere
        keeps none."""
        _, peer = await self.somebody()
        place = group, topic, queue = self.place()
        end = self.model.end(topic, queue)
        offset = self.random.randrange(end + 1)
        where: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": queue}
        target = self._told(place, offset)
        if target is not None:
            answer = await peer.pull(ResponseCode.PULL_OFFSET_MOVED, queueOffset=offset, **where)
            told = answer.fields["nextBeginOffset"]
            assert told == str(target), f"reset: {place}: {told} for {target}"
            return
        tag = self.random.choice((*TAGS, "*"))
        some = self.model.sent.get((topic, queue), [])[offset:]
        fits = [body for body, one in some if tag in (one, "*")][:32]
        code = ResponseCode.SUCCESS if fits else ResponseCode.PULL_RETRY_IMMEDIATELY
        code = code if some else ResponseCode.PULL_NOT_FOUND
        commits, at = self.random.random() < 0.5, self.random.randrange(-1, end + 2)
        where |= {"sysFlag": 4 | commits, "commitOffset": at}
        answer = await peer.pull(code, queueOffset=offset, tags=tag, **where)
        self.model.pulled[place] = offset
        if commits and at >= 0:
            self.model.stands[place] = at
        bodies = [one.body for one in decode_messages(answer.body)] if fits else []
        assert bodies == fits, f"pull: {place} from {offset}: {len(bodies)} for {len(fits)}"

    def _told(self, place: Place, offset: int) -> int | None:
        """Where a pull is sent; None once it comes from there."""
        if place not in self.model.resets:
            return None
        target, until = self.model.resets[place]
        now = trio.current_time()
        until = min(until, now + TOLD_S)
        if target == offset or now > until:
            del self.model.resets[place]
            return None
        self.model.resets[place] = (target, until)
        return target

    async def hold(self) -> None:
        """A pull at the end waits for a message with its tag, or for a reset. Another message does
        not wake it, but for the node's look at all of them each 5 s: not twice within two."""
        place = self.place()
        if place not in self.model.resets and not await self._holds(place):
            assert await self._holds(place), f"hold: {place}: woken by another tag"

    async def _holds(self, place: Place) -> bool:
        _, peer = await self.somebody()
        operator = await self.peer("operator")
        group, topic, queue = place
        end = self.model.end(topic, queue)
        asked = peer.pull_request(
            consumerGroup=group, topic=topic, queueId=queue, queueOffset=end, sysFlag=4 | HELD,
            suspendTimeoutMillis=30_000, tags="red",
        )  # fmt: skip
        connection, answers = peer.connection, list[Command]()
        assert connection is not None

        async def pull() -> None:
            answers.append(await connection.request(asked, timeout_s=60))

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
                    self.model.resets[place] = (0, trio.current_time() + TOLD_S)
            await trio.sleep(0.5)
            assert bool(answers), f"hold: {place} waits on"
        return True

    @asynccontextmanager
    async def held(self, topic: str, queue: int) -> AsyncIterator[list[Command]]:
        """A pull of a group that waits at the end of a queue, unless that is its beginning; what it
        was answered by the end, which it has to be."""
        group, end, answers = GROUPS[0], self.model.end(topic, queue), list[Command]()
        _, peer = await self.somebody()
        asked = peer.pull_request(
            consumerGroup=group, topic=topic, queueId=queue, queueOffset=end, sysFlag=4 | HELD,
            suspendTimeoutMillis=30_000,
        )  # fmt: skip
        connection = peer.connection
        assert connection is not None

        async def pull() -> None:
            answers.append(await connection.request(asked, timeout_s=60))

        async with trio.open_nursery() as nursery:
            is_held = end > 0 and (group, topic, queue) not in self.model.resets
            if is_held:
                nursery.start_soon(pull)
                await trio.sleep(0.1)
                assert not answers, f"hold: {answers} at the end of {topic}/{queue}"
            yield answers
            assert len(answers) == is_held, f"hold: {topic}/{queue} is answered {answers}"
            nursery.cancel_scope.cancel()

    async def _put(self, peer: Peer, topic: str, queue: int, tag: str) -> None:
        await peer.send(b=topic, e=queue, body=tag.encode(), properties={"TAGS": tag})
        self.model.sent.setdefault((topic, queue), []).append((tag.encode(), tag))
