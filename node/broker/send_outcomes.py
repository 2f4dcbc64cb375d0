"""Answers to the messages of a run, once their outcome is known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rocketbed.node.broker.put_codes import PUT_CODES
from rocketbed.node.store.status import PutStatus
from rocketbed.wire.command import ONEWAY_BIT, Command, answer
from rocketbed.wire.frame import encode
from rocketbed.wire.sends import SendAnswers, with_outcome


class Pending(NamedTuple):
    """A message, as its answer needs it; created by `tuple.__new__` for each message."""

    command: Command
    queue_id: int
    queue_offset: int
    offsets: list[int]
    """Physical; several for a batch."""
    key: str
    """UNIQ_KEY."""
    waits: bool
    """True if it waits for disk and slaves; a message with `WAIT=false` does not."""
    batch_key: str | None
    """UNIQ_KEY of an inner batch."""


class PlainRun(NamedTuple):
    """The same for messages that were taken as bytes; all of them wait."""

    answers: bytes
    """Frames, true once the run is in the log."""
    messages: int
    """Number of messages; a one-way one has no answer."""


Sent = Sequence[Pending | PlainRun]


def number_of(sent: Sent) -> int:
    """Return the number of messages."""
    return sum([item.messages if isinstance(item, PlainRun) else 1 for item in sent])


def stored(sent: Sent, status: PutStatus, answers: SendAnswers) -> bytes:
    """Return answers to messages that are in the log; `status` says whether they are as safe as
    requested."""
    parts: list[bytes] = []
    is_good = status is PutStatus.PUT_OK
    for item in sent:
        if isinstance(item, PlainRun):
            good = item.answers
            parts.append(good if is_good else with_outcome(good, PUT_CODES[status]))
            continue
        command, queue_id, queue_offset, offsets, key, _, batch_key = item
        if command.flag & ONEWAY_BIT:
            continue
        if (
            not is_good
            or len(offsets) > 1
            or batch_key is not None
            or not answers.add(
                parts,
                command,
                offset=offsets[0],
                queue_id=queue_id,
                queue_offset=queue_offset,
                key=key,
            )
        ):
            fields = answers.fields(offsets, queue_id, queue_offset, key, batch_key)
            parts.append(encode(answer(command, PUT_CODES[status], None, fields)))
    return b"".join(parts)


def refused(sent: Sent, code: int, remark: str, fields: Mapping[str, str]) -> bytes:
    """Return answers to messages that are not in the log."""
    parts = []
    for item in sent:
        if isinstance(item, PlainRun):
            parts.append(with_outcome(item.answers, code, remark, fields))
        elif not item.command.flag & ONEWAY_BIT:
            parts.append(encode(answer(item.command, code, remark, fields)))
    return b"".join(parts)
