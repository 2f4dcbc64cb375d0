"""A single pull: its request, the broker to ask, and the meaning of its answer (wire.md 5).

Each answer, whatever its status, names the broker of the group to ask next, and the client always
follows it: one that does so only when messages came loops on a slave (wire.md 11, trap 14).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketbed.client.errors import BadMessage, NoBroker, RequestRefused
from rocketbed.client.messages import Received, check_text
from rocketbed.client.routes import MASTER_ID
from rocketbed.client.session import Session
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.errors import RemoteProtocolError
from rocketbed.wire.headers import PullMessageRequest, PullMessageResponse
from rocketbed.wire.message import INNER_BATCH, decode_good
from rocketbed.wire.properties import trimmed
from rocketbed.world.api import Address

COMMIT_OFFSET: Final = 0x1
SUSPEND: Final = 0x2
SUBSCRIPTION: Final = 0x4
ANSWER_S: Final = 15.0
"""Time after the end of a long poll, seconds, for its answer: brokers check every 5 s."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of messages that are requested in one answer."""
ABSENT_S: Final = 1.0
"""Pause, seconds, between queries for a route that lacks the suggested broker."""
ALL: Final = "*"


class PullStatus(Enum):
    """Result kind of a pull."""

    FOUND = 0
    NO_NEW = 19
    """Nothing at or after the offset yet."""
    NO_MATCH = 20
    """Messages, but none with these tags; continue at `next_offset`."""
    MOVED = 21
    """The queue does not have the offset, or not yet; continue at `next_offset`."""


STATUSES: Final = {status.value: status for status in PullStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """Result of one pull."""

    status: PullStatus
    messages: tuple[Received, ...]
    next_offset: int
    """Offset of the next pull."""
    min_offset: int
    """First offset of the queue that the broker still has."""
    max_offset: int
    """Offset that the next message will get."""
    broker_id: int
    """Id of the broker that answered; 0 is the master."""
    address: Address
    """Address of that broker."""
    unwanted: int = 0
    """Number of messages that were dropped because their tags differ: brokers compare only
    hashes."""


class TagFilter:
    """A tag expression: `*`, or `one || two`. The broker compares hashes, the client the words."""

    def __init__(self, expression: str = ALL) -> None:
        """Raise `BadMessage` if no tag is named, or `&&` joins them, which is unsupported."""
        if type(expression) is not str or "&&" in expression:
            raise BadMessage(f"tags must be a text of tags joined by ||: {expression!r}")
        check_text("tags", expression)
        words = [trimmed(word) for word in expression.split("||")]
        is_all = ALL in words or not trimmed(expression)
        self.expression = ALL if is_all else trimmed(expression)
        self.tags = frozenset[str]() if is_all else frozenset(filter(None, words))
        if not is_all and not self.tags:
            raise BadMessage(f"no tag is named in {expression!r}; * stands for all messages")

    def takes(self, message: Received) -> bool:
        """True if a message has one of the tags."""
        return not self.tags or message.tag in self.tags


class _Damaged(RemoteProtocolError):
    """An answer with a damaged record, after `good` undamaged ones."""

    def __init__(self, text: str, good: int) -> None:
        super().__init__(text)
        self.good = good


class Puller:
    """Pulls for one group, and remembers the broker to ask for each queue."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        tags: TagFilter,
        *,
        count: int,
        hold_s: float,
        commit: Callable[[], int | None],
    ) -> Pulled:
        """Pull once; `commit` returns the offset to commit with it, or None.

        Raises `RequestRefused`, `NoBroker`, other `ClientError`, `RemotingError`.
        """
        route = await self._session.routes.get(queue.topic)
        suggested = self._suggested.get(queue, MASTER_ID)
        member = route.member(queue.broker_name, suggested)
        if member is None:
            self._session.routes.distrust(queue.topic)
            raise NoBroker(f"no broker serves {describe(queue)} now")
        broker_id, address = member
        if broker_id != suggested:
            self._session.routes.distrust(queue.topic, older_than_s=ABSENT_S)
        try:
            # Connect first, which may take long: the offset must not be older than a commit made
            # meanwhile.
            await self._session.connections.link(address)
            command = self._request(
                queue,
                offset,
                tags,
                count=count,
                hold_s=hold_s,
                commit=commit() if broker_id == MASTER_ID else None,
            )
            answer = await self._session.ask(address, command, timeout_s=hold_s + ANSWER_S)
        except RemotingError:
            self._suggested.pop(queue, None)
            self._session.routes.distrust(queue.topic)
            raise
        status = STATUSES.get(answer.code)
        if status is None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self._session.routes.distrust(queue.topic, is_gone=True)
            peer = f"broker {queue.broker_name} at {address[0]}:{address[1]}"
            raise RequestRefused(f"pull of {describe(queue)}", peer, answer.code, answer.remark)
        try:
            return self._read(queue, offset, answer, status, tags, member)
        except _Damaged as exc:
            if not 0 < exc.good < count:
                raise
            # Only the broker knows where the messages before the damaged one end, so request just
            # these.
            return await self.pull(queue, offset, tags, count=exc.good, hold_s=0, commit=commit)

    def _request(
        self,
        queue: MessageQueue,
        offset: int,
        tags: TagFilter,
        *,
        count: int,
        hold_s: float,
        commit: int | None,
    ) -> Command:
        flags = SUBSCRIPTION
        if hold_s > 0:
            flags |= SUSPEND
        if commit is not None:
            flags |= COMMIT_OFFSET
        header = PullMessageRequest(
            consumerGroup=self._group,
            topic=queue.topic,
            queueId=queue.queue_id,
            queueOffset=offset,
            maxMsgNums=count,
            sysFlag=flags,
            commitOffset=commit or 0,
            suspendTimeoutMillis=int(hold_s * 1000),
            subscription=tags.expression,
            subVersion=0,
            expressionType="TAG",
            maxMsgBytes=BYTES_MAX,
            bname=queue.broker_name,
        )
        return request(RequestCode.PULL_MESSAGE, header.encode())

    def _read(
        self,
        queue: MessageQueue,
        offset: int,
        answer: Command,
        status: PullStatus,
        tags: TagFilter,
        member: tuple[int, Address],
    ) -> Pulled:
        """Read the answer of a pull. Raises `ProtocolError` for a damaged answer, `_Damaged` for a
        damaged record in it.

        The broker sends whole records, so messages of an inner batch below `offset` are dropped.
        For other records the broker's position counts, not the record's own offset.
        """
        header = PullMessageResponse.decode(answer.raw_fields)
        self._suggested[queue] = header.suggestWhichBrokerId
        messages: Sequence[Received] = ()
        if status is PullStatus.FOUND:
            good, problem = decode_good(answer.body)
            if problem is not None:
                where = f"at offset {offset}" if tags.expression == "*" else f"from {offset} on"
                raise _Damaged(
                    f"{describe(queue)} at {member[1][0]}:{member[1][1]}: what it gives {where} is"
                    f" damaged ({problem}); heal its store, or seek behind that message",
                    len(good),
                ) from problem
            messages = [
                message
                for stored in good
                for message in Received.all_of(stored, queue.broker_name)
                if message.queue_offset >= offset or not stored.sys_flag & INNER_BATCH
            ]
        matching = tuple(message for message in messages if tags.takes(message))
        return Pulled(
            status=status,
            messages=matching,
            next_offset=header.nextBeginOffset,
            min_offset=header.minOffset,
            max_offset=header.maxOffset,
            broker_id=member[0],
            address=member[1],
            unwanted=len(messages) - len(matching),
        )


def describe(queue: MessageQueue) -> str:
    """Return `queue 3 of topic T at broker-a`."""
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"
