"""Outcomes of a send: sent, refused or unknown; and which outcomes are retried.

Unknown is no failure: the broker may have stored the message, or may still do so. Only a refused
message can be sent again without the risk of a second copy. Everything here is pure. The rules are
RocketMQ's (wire.md 4.3), with one more distinction: codes 1 and 14 can also come from a broker that
failed after it had stored the message, so they count as unknown.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NoReturn

from rocketbed.client.errors import SendRefused, SendUnknown
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.codes import ResponseCode


class SendStatus(Enum):
    """Degree of safety of a stored message; only SEND_OK means the configured guarantee."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


STATUSES = {status.value: status for status in SendStatus}
"""Response codes that mean: stored."""

DOUBTFUL_CODES = frozenset((ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE))
"""Codes of refusals that may hide a stored message."""

RETRIED_CODES = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    )
)
"""Codes after which another broker, or the same one later, may accept the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A broker stored the message and gave its position."""

    status: SendStatus
    message_ids: tuple[str, ...]
    """Unique key of each message; several for a batch."""
    offset_ids: tuple[str, ...]
    """Broker's id of each message; empty if it gave none."""
    queue: MessageQueue
    queue_offset: int
    """Queue offset of the first message, counted in messages."""
    attempts: int
    may_be_double: bool = False
    """True if an earlier attempt ended unknown, so that a copy with the same id may exist."""

    @property
    def is_safe(self) -> bool:
        """True if the message is as safe as the cluster's settings promise."""
        return self.status is SendStatus.SEND_OK

    @property
    def message_id(self) -> str:
        """Unique key of the (first) message."""
        return self.message_ids[0]

    @property
    def offset_id(self) -> str | None:
        """Broker's id of the (first) message."""
        return self.offset_ids[0] if self.offset_ids else None

    def raise_for_outcome(self) -> "Sent":
        """Return this outcome; other outcomes raise."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The message is not stored and will not be: sending it again makes no second copy."""

    reason: str
    """Reason of the refusal, and the broker."""
    code: int | None
    """RocketMQ's response code; None when no broker could be asked."""
    message_ids: tuple[str, ...]
    attempts: int

    @property
    def message_id(self) -> str:
        """Unique key of the (first) message."""
        return self.message_ids[0]

    def raise_for_outcome(self) -> NoReturn:
        """Raise `SendRefused`."""
        raise SendRefused(self.reason, self.code, self.message_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The message may be stored, now or a little later, or not at all."""

    reason: str
    """Reason why the outcome is unknown, and the broker."""
    code: int | None
    """Code of the answer if there was one (see `DOUBTFUL_CODES`)."""
    message_ids: tuple[str, ...]
    attempts: int

    @property
    def message_id(self) -> str:
        """Unique key of the (first) message."""
        return self.message_ids[0]

    def raise_for_outcome(self) -> NoReturn:
        """Raise `SendUnknown`."""
        raise SendUnknown(self.reason, self.code, self.message_ids)


Outcome = Sent | Refused | Unknown


def wants_retry(outcome: Outcome, *, retry_unknown: bool, retry_unsafe: bool) -> bool:
    """True if the outcome of an attempt calls for another."""
    if isinstance(outcome, Sent):
        return retry_unsafe and not outcome.is_safe
    retried = outcome.code is None or outcome.code in RETRIED_CODES
    if isinstance(outcome, Unknown):
        return retry_unknown and retried
    return retried


THEN = "; then: "
"""Text between the reason of an unknown outcome and the latest refusal."""


def combined(earlier: Outcome | None, latest: Outcome) -> Outcome:
    """Return the outcome of all attempts up to the latest."""
    if earlier is None or isinstance(earlier, Refused):
        return latest
    if isinstance(latest, Sent):
        return replace(latest, may_be_double=True)
    if isinstance(earlier, Sent):
        return replace(earlier, attempts=latest.attempts, may_be_double=True)
    if isinstance(latest, Refused):
        first, _, _ = earlier.reason.partition(THEN)
        return replace(earlier, attempts=latest.attempts, reason=first + THEN + latest.reason)
    return latest
