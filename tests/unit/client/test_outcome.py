"""Sent, refused, unknown: what is retried, and what several attempts amount to (wire.md 4.3)."""

import pytest

from rocketbed.client.errors import ClientError, NotSent, SendRefused, SendUnknown
from rocketbed.client.outcome import (
    Outcome,
    Refused,
    SendStatus,
    Sent,
    Unknown,
    combined,
    wants_retry,
)
from rocketbed.wire.bodies import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)


def sent(status: SendStatus = SendStatus.SEND_OK, attempts: int = 1) -> Sent:
    return Sent(
        status=status,
        message_ids=("K",),
        offset_ids=("O",),
        queue=QUEUE,
        queue_offset=7,
        attempts=attempts,
    )


def refused(code: int | None = None, attempts: int = 1) -> Refused:
    return Refused(reason="no", code=code, message_ids=("K",), attempts=attempts)


def unknown(code: int | None = None, attempts: int = 1) -> Unknown:
    return Unknown(reason="silence", code=code, message_ids=("K",), attempts=attempts)


def retried(outcome: Outcome, *, unknown: bool = True, unsafe: bool = False) -> bool:
    return wants_retry(outcome, retry_unknown=unknown, retry_unsafe=unsafe)


def test_send_is_retried_only_if_unstored_or_allowed() -> None:
    assert not retried(sent())
    assert not retried(sent(), unsafe=True)
    assert not retried(sent(SendStatus.FLUSH_SLAVE_TIMEOUT))
    assert retried(sent(SendStatus.FLUSH_SLAVE_TIMEOUT), unsafe=True)


@pytest.mark.parametrize("code", [None, 2, 16, 17, 204, 205, 1500])
def test_refusals_that_another_broker_may_not_repeat(code: int | None) -> None:
    assert retried(refused(code), unknown=False)


@pytest.mark.parametrize("code", [3, 13, 29, 26, 604])
def test_refusals_that_everyone_repeats(code: int) -> None:
    assert not retried(refused(code))


@pytest.mark.parametrize("code", [None, 1, 14])
def test_unknown_is_retried_only_if_allowed(code: int | None) -> None:
    assert retried(unknown(code))
    assert not retried(unknown(code), unknown=False)


def test_success_after_an_unknown_may_be_a_second_copy() -> None:
    result = combined(unknown(), sent(attempts=2))
    assert isinstance(result, Sent)
    assert result.may_be_double
    assert not combined(refused(), sent()).may_be_double  # type: ignore[union-attr]


def test_a_refusal_after_an_unknown_leaves_it_unknown() -> None:
    result = combined(unknown(), refused(17, attempts=2))
    assert isinstance(result, Unknown)
    assert (result.attempts, result.reason) == (2, "silence; then: no")


def test_failure_after_a_stored_message_leaves_it_stored() -> None:
    first = sent(SendStatus.SLAVE_NOT_AVAILABLE)
    for latest in (refused(2, attempts=2), unknown(attempts=2)):
        result = combined(first, latest)
        assert isinstance(result, Sent)
        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert result.may_be_double


def test_short_names() -> None:
    assert sent().message_id == refused().message_id == unknown().message_id == "K"
    assert sent().offset_id == "O"
    assert sent().is_safe
    assert not sent(SendStatus.FLUSH_DISK_TIMEOUT).is_safe


def test_outcomes_raise_when_asked_to() -> None:
    assert sent().raise_for_outcome() == sent()
    with pytest.raises(SendRefused, match="no") as refusal:
        refused(16).raise_for_outcome()
    assert (refusal.value.code, refusal.value.message_ids) == (16, refused().message_ids)
    with pytest.raises(SendUnknown):
        unknown().raise_for_outcome()
    assert issubclass(SendUnknown, NotSent)
    assert issubclass(NotSent, ClientError)
