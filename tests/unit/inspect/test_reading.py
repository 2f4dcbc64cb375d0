"""Walk of the independent reader through a damaged log: always forward, in bounded pieces, by the
store's own rules (store.md 8.6, Scan), which it does not share code with."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rocketbed.inspect import Settings, Severity, open_directory
from rocketbed.inspect.commitlog import Hole, LogEnd
from rocketbed.inspect.files import READ_SIZE, FilePool
from rocketbed.inspect.record import MAGIC_PREFIX, Fault, Scanned
from tests.support.stores import Spec, broken, build, check, flip, overwrite, some, write_log

SEGMENT = 64 << 20
SETTINGS = Settings.from_properties({"mappedFileSizeCommitLog": str(SEGMENT)})
LONG = READ_SIZE + (1 << 20)
"""A body that no single window holds."""
SPECS = [Spec(body=b"first"), Spec(body=b"x" * LONG), Spec(body=b"then"), Spec(body=b"last")]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    return make(tmp_path_factory.mktemp("log"), SPECS)


def make(root: Path, specs: list[Spec]) -> tuple[Path, list[int]]:
    """A log of one sparse segment, and where its records are."""
    offsets = write_log(root, specs, segment=SEGMENT)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data + b"\0")
    os.truncate(path, SEGMENT)
    return root, offsets


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads, as asked for."""
    sizes: list[int] = []
    read = FilePool.read

    def counted(pool: FilePool, path: str, position: int, size: int) -> bytes:
        sizes.append(size)
        return read(pool, path, position, size)

    monkeypatch.setattr(FilePool, "read", counted)
    return sizes


def scan(root: Path) -> Iterator[Scanned | Hole | LogEnd]:
    with closing(open_directory(root, SETTINGS)) as opened:
        for item in opened.log.scan():
            assert isinstance(item, Scanned | Hole | LogEnd)
            yield item


def test_record_longer_than_a_window_is_read_whole(
    log: tuple[Path, list[int]], reads: list[int]
) -> None:
    root, offsets = log
    assert [item.offset for item in scan(root) if isinstance(item, Scanned)] == offsets
    assert max(reads) == offsets[2] - offsets[1]


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("number", [0, 1])
def test_wrong_size_costs_its_record_and_no_memory(
    number: int, bit: int, log: tuple[Path, list[int]], reads: list[int]
) -> None:
    root, offsets = log
    at = offsets[number] + 3 - bit // 8
    path = root / "commitlog" / f"{0:020d}"
    flip(path, at, 1 << bit % 8)
    try:
        items = list(scan(root))
    finally:
        flip(path, at, 1 << bit % 8)
    holes = [(item.offset, item.end) for item in items if isinstance(item, Hole)]
    assert holes == [(offsets[number], offsets[number + 1])]
    good = [item.offset for item in items if isinstance(item, Scanned)]
    assert good == [offset for offset in offsets if offset != offsets[number]]
    limit = READ_SIZE if number == 1 else offsets[2] - offsets[1]
    assert max(reads) <= limit


def test_single_record_is_read_by_the_same_rule(
    log: tuple[Path, list[int]], reads: list[int]
) -> None:
    root, offsets = log
    path = root / "commitlog" / f"{0:020d}"
    flip(path, offsets[0], 2)  # 32 MiB
    try:
        with closing(open_directory(root, SETTINGS)) as opened:
            reads.clear()
            assert isinstance(opened.log.record_at(offsets[0]), Fault)
            assert max(reads) <= 64
            assert not isinstance(opened.log.record_at(offsets[1]), Fault)
    finally:
        flip(path, offsets[0], 2)


def test_body_of_magic_numbers_is_skipped_at_once(tmp_path: Path, reads: list[int]) -> None:
    body = (MAGIC_PREFIX + b"\xa7") * (LONG // 4)
    root, offsets = make(tmp_path, [Spec(body=body), Spec(body=b"then")])
    flip(root / "commitlog" / f"{0:020d}", offsets[0] + 9)
    items = list(scan(root))
    assert isinstance(items[0], Hole)
    assert (items[0].offset, items[0].end) == (offsets[0], offsets[1])
    assert [item.offset for item in items[1:] if isinstance(item, Scanned)] == offsets[1:]
    assert sum(reads) < 8 * LONG


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"a/", b"..", b"a\0", b"/\0"])
def test_impossible_topic_name_is_reported(tmp_path: Path, topic: bytes) -> None:
    offsets = build(tmp_path, some(12, topic="TT"))
    body_size = len(b"body 5")
    overwrite(tmp_path / "commitlog" / f"{0:020d}", offsets[5] + 88 + body_size + 1, topic)
    report = check(tmp_path)
    findings = [
        f for f in report.findings if f.rule == "no-silent-damage" and f.severity is Severity.DAMAGE
    ]
    assert [finding.offset for finding in findings] == [offsets[5]]
    assert "queue-entries-complete" not in broken(report), "no queue has to have it"
    assert report.records == 12


def test_last_record_without_its_end_is_not_read(tmp_path: Path) -> None:
    """A kill leaves any first part of a record; no checksum covers topic and properties (T5)."""
    root, offsets = make(tmp_path, [*some(3), Spec(body=b"b", properties=(("K", "v" * 50),))])
    overwrite(root / "commitlog" / f"{0:020d}", offsets[3] + 100, bytes(200))
    *_, end = scan(root)
    assert isinstance(end, LogEnd)
    assert end.offset == offsets[3]
    root, offsets = make(tmp_path / "other", [*some(3), Spec(body=b"b", properties=(("K", "v"),))])
    path = root / "commitlog" / f"{0:020d}"
    overwrite(path, offsets[3] + len(path.read_bytes().rstrip(b"\0")) - offsets[3] - 2, b"\0\0")
    *_, end = scan(root)
    assert isinstance(end, LogEnd)
    assert (end.offset, end.fault and end.fault.rule) == (offsets[3], "record-unwritten")
