"""Limits of answers in pages, and of what an answer leads a client or slave to do."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from rocketbed.node.broker.admin import PAGE_MAX, _first_row, _page
from rocketbed.node.broker.queries import Queries
from rocketbed.node.broker.registration import Registration
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.status import GetStatus
from rocketbed.wire.bodies import DataVersion
from rocketbed.wire.command import Command, answer


@pytest.mark.parametrize(
    ("requested", "rows"),
    [(None, PAGE_MAX), (0, PAGE_MAX), (-1, PAGE_MAX), (1, 1), (2, 2), (PAGE_MAX + 1, PAGE_MAX)],
)
def test_a_page_has_a_limit(requested: int | None, rows: int) -> None:
    assert _page(requested) == rows


def test_a_page_of_another_version_begins_anew() -> None:
    version, newer = DataVersion(timestamp=5), DataVersion(timestamp=6)
    for at, text, first in (
        (3, None, 3),
        (3, "", 3),
        (-1, None, 0),
        (1, version.encode().decode(), 1),
        (3, newer.encode().decode(), 0),
    ):
        assert _first_row(at, text, version) == first


@pytest.mark.parametrize("memory_bytes", [0, 10])
def test_a_new_group_begins_at_a_message_in_memory(memory_bytes: int) -> None:
    for at, low, status in product((89, 90, 91), (0, 1), (GetStatus.FOUND, None)):
        result = SimpleNamespace(status=status, min_offset=low, ranges=[(at, 1)])
        store = SimpleNamespace(max_offset=100, get_messages=lambda *_, found=result: found)
        config = SimpleNamespace(store=SimpleNamespace(memory_bytes=memory_bytes))
        queries: Any = SimpleNamespace(_store=store, _config=config)
        expected = status is not None and low == 0 and (at >= 90 or not memory_bytes)
        assert Queries._starts_in_memory(queries, "T", 3) == expected


def test_a_new_group_does_not_begin_at_a_damaged_message() -> None:
    def damaged(*_: object) -> None:
        raise CorruptRecord("bad", offset=0)

    store = SimpleNamespace(max_offset=100, get_messages=damaged)
    config = SimpleNamespace(store=SimpleNamespace(memory_bytes=0))
    queries: Any = SimpleNamespace(_store=store, _config=config)
    assert not Queries._starts_in_memory(queries, "T", 3)


@pytest.mark.parametrize(("is_slave", "replica"), [(True, None), (True, 1), (False, None)])
def test_only_a_slave_without_failover_follows_the_registered_master(
    is_slave: bool, replica: int | None
) -> None:
    for ha, master in product(("h", ""), ("m", "")):
        follows = list[tuple[str, str]]()
        registration: Any = SimpleNamespace(
            registered={("n", 1): False},
            _world=SimpleNamespace(log=SimpleNamespace(info=lambda *_, **__: None)),
            _masters={},
            _config=SimpleNamespace(is_slave=is_slave, replica=replica),
            _follow=follows.append,
        )
        fields = {"haServerAddr": ha, "masterAddr": master}
        reply = answer(
            Command(code=103), 0, None, {key: text for key, text in fields.items() if text}
        )
        for _ in range(2):
            Registration._accept(registration, ("n", 1), reply)
        expected = is_slave and replica is None and bool(ha and master)
        assert follows == [(ha, master)] * expected
        assert registration.registered == {("n", 1): True}
