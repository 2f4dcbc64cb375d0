"""Plain sends: the names of their properties, and the numbers of their headers."""

from random import Random
from typing import Any

import pytest

from rocketbed.node.broker.plain_shapes import (
    MEANINGS_MAX,
    NAMES_MAX,
    SLOW_PROPERTIES,
    Meanings,
    Names,
)
from rocketbed.wire.properties import CRC32, KEYS, PAIR_END, TAGS, UNIQUE_KEY, WAIT

SUFFIX = b"more"
INDEXED = (UNIQUE_KEY, TAGS, KEYS, WAIT)
WORDS = (*INDEXED, "a", "b", "")
SLOW = (*sorted(SLOW_PROPERTIES), CRC32, f"__{CRC32}", f"{CRC32}1")
ACCEPTED = (("A", "0", "0", "0"), ("A", "1", "3", "-2147483648"), ("A", "1", "256", "2147483647"),
            ("A", "0", str(0x7FFFFF03), "0"))  # fmt: skip


def drawn_names(random: Random) -> list[str]:
    names = random.sample(WORDS, random.randrange(1, 6))
    names += random.sample(SLOW, 1) if random.random() < 0.2 else []
    names += names[:1] if random.random() < 0.1 else []
    names += ["n" * NAMES_MAX] if random.random() < 0.1 else []
    return [*names, "c"] if names[-1] == "" else names


@pytest.mark.parametrize("seed", range(4))
def test_locates_the_indexed_properties(seed: int) -> None:
    random, names = Random(seed), Names(SUFFIX)
    for _ in range(100):
        drawn = drawn_names(random)
        key = [drawn[0], *(PAIR_END + name for name in drawn[1:])]
        if random.random() < 0.1:
            key[-1] = key[-1].removeprefix(PAIR_END)
        is_separated = all(name[:1] == PAIR_END for name in key[1:])
        is_ended = random.random() < 0.5
        key += [PAIR_END] * is_ended
        is_slow = any(name in SLOW_PROPERTIES or name[-len(CRC32) :] == CRC32 for name in drawn)
        is_plain = UNIQUE_KEY in drawn and "" not in drawn and len({*drawn}) == len(drawn)
        expected: Any = None
        if is_plain and is_separated and not is_slow:
            places = [drawn.index(name) * 2 + 1 if name in drawn else 0 for name in INDEXED]
            suffix = SUFFIX if is_ended else PAIR_END.encode() + SUFFIX
            pairs = len(drawn) - 1 + is_ended
            expected = (*places, pairs, 2 * len(drawn) + is_ended, suffix)
        assert names[tuple(key)] == expected
        assert (tuple(key) in names) == (sum(map(len, key)) <= NAMES_MAX)


@pytest.mark.parametrize("texts", ACCEPTED)
def test_accepts_numbers_that_fit_a_record(texts: tuple[str, str, str, str]) -> None:
    assert Meanings({"A": 2})[texts] == tuple(map(int, texts[1:]))


@pytest.mark.parametrize(
    "texts",
    [
        ("A", "2", "0", "0"), ("A", "-1", "0", "0"), ("A", "0", "-1", "0"), ("A", "0", "4", "0"),
        ("A", "0", "128", "0"), ("A", "0", str(1 << 31), "0"), ("A", "0", "0", "2147483648"),
        ("A", "0", "0", "-2147483649"), ("N", "0", "0", "0"), ("A", "x", "0", "0"),
    ],
)  # fmt: skip
def test_refuses_numbers_beyond_a_record(texts: tuple[str, str, str, str]) -> None:
    with pytest.raises((KeyError, ValueError)):
        Meanings({"A": 2})[texts]


def test_forgets_all_when_full() -> None:
    meanings = Meanings({"A": 2})
    for flag in range(MEANINGS_MAX):
        meanings["A", "0", "1", str(flag)]
    assert len(meanings) == MEANINGS_MAX
    meanings["A", "0", "2", "0"]
    assert len(meanings) == 1
