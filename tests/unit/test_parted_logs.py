"""Whether two logs went different ways, as `cluster promote` asks before it makes a master."""

from pathlib import Path

import pytest

from rocketbed.chaos.cluster.ends import COMPARED, LOOKED_AT, has_parted
from tests.support.logs import STORE_MS, Log, Message

SIZES = [100] * 20 + [3 * COMPARED] + [50] * 5
"""Of bodies; one takes more than the bytes that are compared."""


def make(root: Path, parted: int = len(SIZES)) -> Log:
    """A log whose messages from a number on were stored a second later than the others."""
    messages = [
        Message(body=b"x" * size, store_ms=STORE_MS + 1000 * (number >= parted))
        for number, size in enumerate(SIZES)
    ]
    return Log(root, segment=1 << 20).append(messages)


@pytest.mark.parametrize("parted", [19, 20, 21, 25])
def test_who_lost_an_end_and_went_on_has_parted(tmp_path: Path, parted: int) -> None:
    one, other = make(tmp_path / "a"), make(tmp_path / "b", parted)
    end = one.offsets[-1] + one.sizes[-1]
    assert has_parted(one.root, other.root, end)
    assert has_parted(other.root, one.root, end)
    assert not has_parted(one.root, other.root, one.offsets[parted])


@pytest.mark.parametrize("other_size", [1777, 70_001])
def test_who_parted_long_ago_has_still(tmp_path: Path, other_size: int) -> None:
    """No message of one begins where one of the other does, for more than is looked at."""
    both = [Message(body=b"x" * 100, store_ms=STORE_MS)] * 20
    mine = [Message(body=b"a" * 90_000, store_ms=STORE_MS + 1)] * 120
    theirs = [Message(body=b"b" * other_size, store_ms=STORE_MS + 2)] * (10_800_000 // other_size)
    one = Log(tmp_path / "a", segment=1 << 20).append(both + mine)
    other = Log(tmp_path / "b", segment=1 << 20).append(both + theirs)
    end = min(one.offsets[-1] + one.sizes[-1], other.offsets[-1] + other.sizes[-1])
    assert end > LOOKED_AT + 1_000_000
    assert has_parted(one.root, other.root, end)
    assert has_parted(other.root, one.root, end)


def test_what_is_damaged_or_cannot_be_read_has_not(tmp_path: Path) -> None:
    one, other = make(tmp_path / "a"), make(tmp_path / "b")
    end = one.offsets[-1] + one.sizes[-1]
    assert not has_parted(one.root, other.root, end)
    other.flip(other.offsets[23] + 95)
    assert not has_parted(one.root, other.root, end)
    other.write(other.offsets[22] + 10, bytes(end - other.offsets[22] - 10))
    assert not has_parted(one.root, other.root, end)
    assert not has_parted(other.root, one.root, end)
    assert not has_parted(one.root, tmp_path / "none", end)
    one.path(0).unlink()
    assert not has_parted(one.root, other.root, end)
