"""Tag filters of subscriptions, as hashes (wire.md 5.6)."""

from rocketbed.wire.bodies import SubscriptionData
from rocketbed.wire.javahash import tag_code
from rocketbed.wire.properties import trimmed

ALL = "*"


class BadExpression(ValueError):
    """A tag expression without any tag."""


def is_tag_type(expression_type: str | None) -> bool:
    """True if a subscription filters by tags; SQL92 is the alternative."""
    return expression_type is None or expression_type in ("", "TAG")


def parse_tags(expression: str | None) -> frozenset[int] | None:
    """Return the hashes of the tags in `a || b`; None lets everything pass. Raises `BadExpression`.

    RocketMQ: `FilterAPI.buildSubscriptionData`.
    """
    if expression is None or trimmed(expression) in (ALL, ""):
        return None
    tags = [tag for tag in map(trimmed, expression.split("||")) if tag]
    if not tags:
        raise BadExpression(f"no tag in {expression!r}")
    return frozenset(tag_code(tag) for tag in tags)


def tag_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """Return the same for a subscription from a heartbeat, which includes its hashes."""
    if subscription.class_filter_mode or trimmed(subscription.sub_string) in (ALL, ""):
        return None
    if subscription.code_set:
        return frozenset(subscription.code_set)
    if subscription.tags_set:
        return frozenset(tag_code(tag) for tag in subscription.tags_set)
    try:
        return parse_tags(subscription.sub_string)
    except BadExpression:
        return frozenset()
