"""Names that a broker reads: tag expressions, and destinations of delayed messages."""

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.node.broker.subscriptions import BadExpression, parse_tags, tag_codes
from rocketbed.node.broker.waiting import target_of
from rocketbed.wire.bodies import SubscriptionData
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.properties import REAL_QUEUE, REAL_TOPIC

NUMBERS = ("0", "7", "999999999", "1000000000", "", "-1", "+1", "1.0", "\u0663", "1 ", "x")


@pytest.mark.parametrize("queue", NUMBERS)
@pytest.mark.parametrize("topic", ["T", "", "a b", "t" * 127, "t" * 128])
def test_reads_the_destination_of_a_delayed_message(topic: str, queue: str) -> None:
    message: Any = SimpleNamespace(properties={REAL_TOPIC: topic, REAL_QUEUE: queue})
    if topic in ("T", "t" * 127) and re.fullmatch("[0-9]{1,9}", queue):
        assert target_of(message) == (topic, int(queue))
    else:
        with pytest.raises(ValueError, match=r"."):
            target_of(message)


@pytest.mark.parametrize(
    ("expression", "tags"), [(None, None), ("", None), (" * ", None), ("a||b", "ab")]
)
def test_reads_tags_of_a_pull(expression: str | None, tags: str | None) -> None:
    assert parse_tags(expression) == (tags and frozenset(map(ord, tags)))


def test_refuses_an_expression_without_tags() -> None:
    with pytest.raises(BadExpression):
        parse_tags("||")


def test_a_heartbeats_hashes_precede_its_tags_and_its_text() -> None:
    texts = {"*": None, "": None, " * ": None, "a || b": {97, 98}, "||": set[int]()}
    for by_class, text, codes, tags in product((False, True), texts, ([], [5, -7]), ([], ["a"])):
        subscription = SubscriptionData(
            topic="T", sub_string=text, class_filter_mode=by_class, code_set=codes, tags_set=tags
        )
        expected = texts[text]
        if expected is not None:
            expected = set(codes) or ({97} if tags else expected)
        assert tag_codes(subscription) == (None if by_class else expected)


def test_trims_as_java_does() -> None:
    """Else a broker drops the messages that a subscription of such a tag asks for."""
    assert parse_tags(" A\u3000 ||\tB") == frozenset(map(tag_code, ("A\u3000", "B")))
    assert parse_tags("\u3000") == frozenset((tag_code("\u3000"),))
    assert parse_tags("\x1f*") is None
