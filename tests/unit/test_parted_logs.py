"""Whether two logs went different ways, as `cluster promote` asks before it makes a master."""

from pathlib import Path

import pytest

from rocketbed.chaos.cluster.ends import COMPARED, has_parted
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
