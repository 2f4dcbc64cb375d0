"""Bugs of the consumer's half that once escaped, kept out of the catalogue that the testbed knows.

Each is put into the node in the processes of its runs only, and the swarm alone has to find it.
"""

from collections.abc import Callable
from itertools import count
from socket import inet_aton
from typing import Any

import pytest

from tests.mutation.planted.mutant import swap
from tests.support.reserve import assert_found

ENDLESS = 1 << 50
OFFSETS = "rocketbed.node.broker.offsets:Offsets"
FIRST_SEED = 11_000
BUDGET_S = 900.0
SEEDS = {"positions_forgotten_at_start": 7}
"""Of bugs that one seed in twenty meets."""
"""Simulated seconds, some 14 runs."""


def held_pulls_never_woken() -> None:
    swap("rocketbed.node.broker.long_polling:LongPolls.on_arrival", lambda self, entries: None)


def two_of_three_commits_dropped() -> None:
    numbers = count()

    def commit(self: Any, *arguments: Any) -> None:
        if next(numbers) % 3 == 0:
            original(self, *arguments)

    original = swap(f"{OFFSETS}.commit", commit)


def positions_not_copied_to_slaves() -> None:
    def replace(self: Any, name: str, table: Any, theirs: Any) -> None:
        if "ffset" not in name:
            original(self, name, table, theirs)

    original = swap("rocketbed.replication.metadata:MetadataSync._replace", replace)


def tag_rewritten() -> None:
    def add(self: Any, topic: str, queue: int, body: bytes, properties: bytes, **more: Any) -> Any:
        renamed = properties.replace(b"TAGS\x01red", b"TAGS\x01der")
        return original(self, topic, queue, body, renamed, **more)

    original = swap("rocketbed.node.store.run:Run.add", add)


def own_property_left_out() -> None:
    def add(self: Any, topic: str, queue: int, body: bytes, properties: bytes, **more: Any) -> Any:
        parts = properties.split(b"\x02")
        properties_left = b"\x02".join(
            one for one in parts if not one.startswith(b"rocketbed note\x01")
        )
        return original(self, topic, queue, body, properties_left, **more)

    original = swap("rocketbed.node.store.run:Run.add", add)


def promoted_gives_no_tags_of_its_own() -> None:
    """Give messages that a promoted master takes itself to no group with a tag filter."""
    was_slave: set[bytes] = set()
    first: dict[bytes, int] = {}

    def replace_all(self: Any, table: Any, *, is_new: bool = True) -> None:
        if is_new and self._config.is_slave:
            node = inet_aton(self._config.ip1)
            was_slave.add(node)
            first.pop(node, None)
        replaced(self, table, is_new=is_new)

    def begin(self: Any) -> Any:
        record_start = begun(self)
        first.setdefault(bytes(self._parts.log.tail.store_host_bytes[:4]), record_start.position)
        return record_start

    def make(self: Any, parts: Any, *arguments: Any) -> None:
        swapped(self, parts, *arguments)
        node = bytes(parts.log.tail.store_host_bytes[:4])
        self.own = first.get(node, ENDLESS) if node in was_slave else ENDLESS

    def pick(self: Any, units: Any) -> Any:
        if self._tag_codes is not None:
            units = [(at, size, code if at < self.own else ENDLESS) for at, size, code in units]
        return picked(self, units)

    replaced = swap(f"{OFFSETS}.replace_all", replace_all)
    begun = swap("rocketbed.node.store.store:MessageStore.begin", begin)
    swapped = swap("rocketbed.node.store.picker:Picker.__init__", make)
    picked = swap("rocketbed.node.store.picker:Picker.pick", pick)


def time_search_off_by_one() -> None:
    async def search(self: Any, *arguments: Any, **more: Any) -> int:
        offset: int = await original(self, *arguments, **more)
        return offset + 1

    original = swap("rocketbed.node.store.reader:Reader.offset_by_time", search)


def every_key_query_fails() -> None:
    async def query(self: Any, *arguments: Any) -> None:
        raise CorruptRecord("planted", offset=0)

    from rocketbed.node.store.errors import CorruptRecord

    swap("rocketbed.node.store.reader:Reader.query", query)


def unflushed_data_readable() -> None:
    def make(self: Any, parts: Any) -> None:
        original(self, parts)
        self._end = parts.log.written
        self._end.subscribe(lambda _: self._wake.set())

    original = swap("rocketbed.node.store.dispatch:Dispatcher.__init__", make)


def negative_hashes_never_match() -> None:
    def code(tag: str) -> int:
        tag_hash: int = original(tag)
        return tag_hash & 0xFFFFFFFF

    original = swap("rocketbed.node.broker.subscriptions:tag_code", code)


def nothing_is_filtered() -> None:
    swap("rocketbed.node.broker.pull:parse_tags", lambda expression: None)


def positions_forgotten_at_start() -> None:
    swap(f"{OFFSETS}.load", lambda self: None)


CASES: list[tuple[Callable[[], None], tuple[str, ...]]] = [
    (held_pulls_never_woken, ("late-delivery",)),
    (positions_forgotten_at_start, ("forgotten-offset",)),
    (two_of_three_commits_dropped, ("wrong-reported-offset",)),
    (positions_not_copied_to_slaves, ("tables-complete",)),
    (tag_rewritten, ("altered-label",)),
    (own_property_left_out, ("altered-label",)),
    (promoted_gives_no_tags_of_its_own, ("group-skip",)),
    (time_search_off_by_one, ("time-search",)),
    (every_key_query_fails, ("query-mismatch",)),
    (unflushed_data_readable, ("read-before-flush",)),
    (negative_hashes_never_match, ("group-skip",)),
    (nothing_is_filtered, ("broker-tag-filter",)),
]


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(("plant", "ids"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_is_found(plant: Callable[[], None], ids: tuple[str, ...]) -> None:
    assert_found(plant, ids, first_seed=SEEDS.get(plant.__name__, FIRST_SEED), budget_s=BUDGET_S)
