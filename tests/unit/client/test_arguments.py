"""Arguments that cannot work are refused by name at the call, in each kind of client."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rocketbed.aio
import rocketbed.blocking
from rocketbed.client.consumer import Consumer
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.producer import Producer
from rocketbed.client.pulls import TagFilter
from rocketbed.client.subscriptions import _checked
from rocketbed.wire.bodies import MessageQueue

FACES = (Consumer, rocketbed.blocking.Consumer, rocketbed.aio.Consumer)
QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
BAD: Any = 1.5


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"allocation": None}, "allocation must be"),
        ({"allocation": 5}, "allocation must be"),
        ({"allocation": "none"}, "allocation must be one of"),
        ({"tracing": 5}, "tracing has no method 'handling'"),
        ({"group": None}, "group name None"),
        ({"hold_s": None}, "hold_s must be"),
        ({"hold_s": float("nan")}, "hold_s must be"),
        ({"auto_commit_s": 0}, "auto_commit_s must be"),
    ],
)
def test_consumer_refuses_impossible_arguments(
    face: Callable[..., object], options: dict[str, Any], pattern: str
) -> None:
    texts = {"nameservers": "127.0.0.1:1", "group": "g", **options}
    with pytest.raises(BadMessage, match=pattern):
        face(**texts)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"timeout_s": float("nan")}, "timeout_s must be a positive"),
        ({"timeout_s": None}, "timeout_s must be a positive"),
        ({"tracing": 5}, "tracing has no method 'sending'"),
        ({"group": 7}, "group name 7"),
    ],
)
def test_producer_refuses_impossible_arguments(options: dict[str, Any], pattern: str) -> None:
    texts = {"nameservers": "127.0.0.1:1", **options}
    with pytest.raises(BadMessage, match=pattern):
        Producer(**texts)


@pytest.mark.parametrize("expression", ["a && b", None, 5, "|| "])
def test_tags_that_no_message_can_have_are_refused(expression: Any) -> None:
    with pytest.raises(BadMessage, match="tag"):
        TagFilter(expression)


BAD_LISTENING: list[tuple[dict[str, Any], str]] = [
    ({"max_retries": 1.5}, "max_retries must be a number from 0 to 2147483647: 1.5"),
    ({"max_retries": 1 << 31}, "max_retries must be"),
    ({"max_retries": -1}, "max_retries must be"),
    ({"max_retries": None}, "max_retries must be"),
    ({"workers": -1}, "workers must be a number from 1 on: -1"),
    ({"workers": 1.5}, "workers must be"),
    ({"workers": None}, "workers must be"),
    ({"timeout_s": 0}, "timeout_s must be"),
    ({"timeout_s": None}, "timeout_s must be"),
    ({"handler": None}, "the handler must be a function"),
]


async def _never(_: object) -> None:
    raise AssertionError("nothing is handled here")


@pytest.mark.parametrize(("options", "pattern"), BAD_LISTENING)
async def test_listen_refuses_what_it_cannot_work_with(
    options: dict[str, Any], pattern: str
) -> None:
    reader = Consumer(nameservers="127.0.0.1:1", group="g")
    with pytest.raises(BadMessage, match=pattern):
        await reader.listen(**{"handler": _never, **options})


@pytest.mark.parametrize(("options", "pattern"), BAD_LISTENING)
def test_a_listener_of_threads_refuses_it_alike(options: dict[str, Any], pattern: str) -> None:
    reader = rocketbed.blocking.Consumer(nameservers="127.0.0.1:1", group="g")
    with pytest.raises(BadMessage, match=pattern):
        reader.listen(**{"handler": print, **options})


QUESTIONS: list[tuple[Callable[[QueueOffsets], Awaitable[object]], str]] = [
    (lambda offsets: offsets.commit("g", QUEUE, -3), "an offset must be"),
    (lambda offsets: offsets.commit("g", QUEUE, True), "an offset must be"),
    (lambda offsets: offsets.commit("g", BAD, 3), "a queue must be one"),
    (lambda offsets: offsets.committed("g", BAD), "a queue must be one"),
    (lambda offsets: offsets.min_offset(BAD), "a queue must be one"),
    (lambda offsets: offsets.max_offset(BAD), "a queue must be one"),
    (lambda offsets: offsets.offset_at(BAD, 0), "a queue must be one"),
    (lambda offsets: offsets.offset_at(QUEUE, BAD), "a time must be"),
    (lambda offsets: offsets.offset_at(QUEUE, 1 << 63), "a time must be"),
    (lambda offsets: offsets.offset_at(QUEUE, -1), "a time must be"),
]


@pytest.mark.parametrize(("ask", "pattern"), QUESTIONS)
async def test_impossible_query_is_not_sent(
    ask: Callable[[QueueOffsets], Awaitable[object]], pattern: str
) -> None:
    with pytest.raises(BadMessage, match=pattern):
        await ask(Consumer(nameservers="127.0.0.1:1", group="g").offsets)


@pytest.mark.parametrize("start", [1 << 200, -1, "firs", None, 1.0])
def test_invalid_start_time_is_refused(start: Any) -> None:
    with pytest.raises(BadMessage, match=r"start must be|a time must be"):
        _checked("T", "*", start)


async def test_unwritable_position_file_is_not_called_damaged() -> None:
    reader = Consumer(nameservers="127.0.0.1:1", group="g", broadcast="/dev/null/place.json")
    with pytest.raises(ClientError, match="has to be there and writable"):
        await reader.__aenter__()
