"""Check for diverged logs, which `cluster promote` makes before it promotes a slave."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rocketbed.cluster.log_ends import COMPARED_BYTES, have_diverged
from tests.support.logs import STORE_MS, Log, Message

SIZES = [100] * 20 + [200 * 1024] + [50] * 5
"""Of bodies."""
MIB = 1 << 20


def make(root: Path, parted: int = len(SIZES)) -> Log:
    """A log whose messages from a number on were stored a second later than the others."""
    messages = [
        Message(body=b"x" * size, store_ms=STORE_MS + 1000 * (number >= parted))
        for number, size in enumerate(SIZES)
    ]
    return Log(root, segment=MIB).append(messages)


def later(*sizes: int) -> list[Message]:
    return [Message(body=b"y" * size, store_ms=STORE_MS + 9) for size in sizes]


def part(root: Path, both: Sequence[int], mine: Sequence[int], theirs: Sequence[int]) -> bool:
    """True if two logs that begin with the same messages have diverged, by the view of both."""
    common = [Message(body=b"x" * size) for size in both]
    first_log = Log(root / "a", segment=16 * MIB if max(mine) > MIB else MIB).append(common)
    second_log = Log(root / "b", segment=first_log.segment).append(common)
    first_log.append([Message(body=b"z" * size, store_ms=STORE_MS + 5) for size in mine])
    second_log.append(later(*theirs))
    end = min(first_log.end, second_log.end)
    diverged = have_diverged(first_log.root, second_log.root, end)
    assert have_diverged(second_log.root, first_log.root, end) == diverged
    return diverged


@pytest.mark.parametrize("parted", [19, 20, 21, 25])
def test_log_that_lost_its_end_and_went_on_has_diverged(tmp_path: Path, parted: int) -> None:
    first_log, second_log = make(tmp_path / "a"), make(tmp_path / "b", parted)
    assert have_diverged(first_log.root, second_log.root, first_log.end)
    assert have_diverged(second_log.root, first_log.root, first_log.end)
    assert not have_diverged(first_log.root, second_log.root, first_log.offsets[parted])


@pytest.mark.parametrize("size", [1777, 70_001])
def test_old_divergence_is_found(tmp_path: Path, size: int) -> None:
    """No message of one begins where one of the other does, for more than is looked at."""
    count = (COMPARED_BYTES + MIB) // size
    assert part(tmp_path, [100] * 20, [90_000] * ((COMPARED_BYTES + MIB) // 90_000), [size] * count)


def test_divergence_is_found_at_any_size_and_file_end(tmp_path: Path) -> None:
    assert part(tmp_path / "larger than what is looked at", [100], [9 * MIB], [9 * MIB])
    kib = 1024
    assert part(tmp_path / "a filler there, a message here", [100 * kib] * 9, [200 * kib], [kib])
    assert part(tmp_path / "both end in fillers", [100], [600 * kib] * 2, [700 * kib] * 2)


def test_missing_file_hides_nothing_else(tmp_path: Path) -> None:
    assert part(tmp_path, [100], [90_000] * 130, [70_001] * 170)
    (tmp_path / "a/commitlog" / f"{4 * MIB:020d}").unlink()
    end = 11 * MIB
    assert have_diverged(tmp_path / "a", tmp_path / "b", end)
    assert have_diverged(tmp_path / "b", tmp_path / "a", end)


def test_damaged_or_unreadable_log_has_not_diverged(tmp_path: Path) -> None:
    first_log, second_log = make(tmp_path / "a"), make(tmp_path / "b")
    assert not have_diverged(first_log.root, second_log.root, first_log.end)
    second_log.flip(second_log.offsets[23] + 95)
    assert not have_diverged(first_log.root, second_log.root, first_log.end)
    second_log.flip(second_log.offsets[22] + 63)  # its store time, which no checksum covers
    assert not have_diverged(first_log.root, second_log.root, first_log.end)
    second_log.write(
        second_log.offsets[21] + 10, bytes(first_log.end - second_log.offsets[21] - 10)
    )
    assert not have_diverged(first_log.root, second_log.root, first_log.end)
    assert not have_diverged(second_log.root, first_log.root, first_log.end)
    assert not have_diverged(first_log.root, tmp_path / "none", first_log.end)
    first_log.path(0).unlink()
    assert not have_diverged(first_log.root, second_log.root, first_log.end)


def test_a_hole_that_was_closed_has_not(tmp_path: Path) -> None:
    first_log, second_log = make(tmp_path / "a"), make(tmp_path / "b")
    closed = Message(topic="!", body=b"x" * 50, sys_flag=0xC, store_ms=STORE_MS + 7)
    second_log.write(second_log.offsets[22], closed.encode(second_log.offsets[22], 0))
    assert not have_diverged(first_log.root, second_log.root, first_log.end)
    assert not have_diverged(second_log.root, first_log.root, first_log.end)
