"""Names that a broker reads: where a message that waits goes, which tags a reader asks for."""

import re
from itertools import product
from typing import Any

from rocketbed.node.broker.subscriptions import BadExpression, parse_tags, tag_codes
from rocketbed.node.broker.waiting import target_of
from rocketbed.node.store.run import without_checksum
from rocketbed.wire.bodies import SubscriptionData
from rocketbed.wire.message import StoredMessage
from rocketbed.wire.properties import REAL_QUEUE, REAL_TOPIC


def ask_targets() -> None:
    """Where a message that waits goes: a topic's name, and a number."""
    texts = ("0", "7", "999999999", "1000000000", "", "-1", "+1", "1.0", "\u0663", "1 ", "x")
    for topic, queue in product(("T", "", "a b", "t" * 127, "t" * 128), texts):
        message = _stored({REAL_TOPIC: topic, REAL_QUEUE: queue})
        is_place = topic in ("T", "t" * 127) and re.fullmatch("[0-9]{1,9}", queue) is not None
        try:
            found: tuple[str, int] | None = target_of(message)
        except ValueError:
            found = None
        want = (topic, int(queue)) if is_place else None
        assert found == want, f"place: {topic[:3]!r} {queue!r}: {found}"


def _stored(properties: dict[str, str]) -> StoredMessage:
    class Stored:
        pass

    stored: Any = Stored()
    stored.properties = properties
    return stored  # type: ignore[no-any-return]


def ask_checksums() -> None:
    """A producer's checksum of a record is left out, wherever it stands; nothing else is."""
    ours, others = "__CRC32#\x010123456789\x02", ("K\x01v\x02", "x__CRC32#\x011\x02", "")
    for count in range(4):
        for row in product((ours, *others), repeat=count):
            text = "".join(row).encode()
            want = "".join(one for one in row if one != ours).encode()
            found = without_checksum(text)
            assert found == want, f"checksum: {text!r}: {found!r}"
    found = without_checksum(f"K\x01v\x02{ours[:-1]}".encode())
    assert found == b"K\x01v\x02", f"checksum: {found!r}"


def ask_tags() -> None:
    """What the expression of a pull lets through, and of a heartbeat: hashes as they came, or
    of its words."""
    for text, words in ((None, None), ("", None), (" * ", None), ("a||b", "ab"), ("||", "")):
        try:
            passes: object = parse_tags(text)
        except BadExpression:
            passes = "refused"
        wanted = "refused" if words == "" else words and frozenset(map(ord, words))
        assert passes == wanted, f"tags: {text!r}: {passes}"
    for by_class, text, codes, tags in product(
        (False, True), ("*", "", " * ", "a || b", "||"), ([], [5, -7]), ([], ["a"])
    ):
        asked = SubscriptionData(
            topic="T", sub_string=text, class_filter_mode=by_class, code_set=codes, tags_set=tags
        )
        want: frozenset[int] | None = frozenset()
        if by_class or text.strip(" *") == "":
            want = None
        elif codes:
            want = frozenset(codes)
        elif tags:
            want = frozenset({97})
        elif text == "a || b":
            want = frozenset({97, 98})
        found = tag_codes(asked)
        assert found == want, f"tags: {asked}: {found}"
