"""Flipped bits of a log that no check can see: nothing repeats the damaged data."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rocketbed.chaos.backends.at_rest import DirectoryFiles, inflict
from rocketbed.chaos.plan.damage import FIELDS, Damage, Hit
from rocketbed.inspect.consumequeue import BATCH_UNIT, PRE_BLANK
from tests.support.logs import UNIT, Log, Message

PROPERTIES = "KEYS\x01k\x02TAGS\x01red\x02ZONE\x01west\x02"
FILE = f"commitlog/{0:020d}"


class At(Random):
    """Flips a bit of one byte."""

    def __init__(self, byte: int, bit: int = 0) -> None:
        super().__init__(1)
        self.byte, self.bit = byte, bit

    def randrange(self, start: int, *_: object) -> int:
        return self.bit if start == 8 else self.byte


@pytest.mark.parametrize("has_crc", [False, True])
@pytest.mark.parametrize("field", [*FIELDS, "topic"])
def test_fields_of_a_record(tmp_path: Path, field: str, has_crc: bool) -> None:
    Log(tmp_path).append([Message(properties=PROPERTIES, has_crc=has_crc)])
    hit = inflict(DirectoryFiles(tmp_path), Damage(kind="flip", where=field), Random(7))
    assert hit.is_unseen == (field == "time" and not has_crc)


@pytest.mark.parametrize(
    ("text", "is_unseen"), [("ZONE", True), ("west", True), ("red", False), ("KEYS", False)]
)
@pytest.mark.parametrize("has_crc", [False, True])
def test_properties_of_a_record(tmp_path: Path, text: str, is_unseen: bool, has_crc: bool) -> None:
    """Seeds 1283168 and 1283188."""
    Log(tmp_path).append([Message(properties=PROPERTIES, has_crc=has_crc)])
    byte = DirectoryFiles(tmp_path).read(FILE).index(text.encode())
    hit = inflict(DirectoryFiles(tmp_path), Damage(kind="flip", where="log"), At(byte))
    assert hit == Hit(f"{FILE} byte {byte}", is_unseen and not has_crc)


def test_the_name_of_a_checksum_itself(tmp_path: Path) -> None:
    Log(tmp_path).append([Message(properties=PROPERTIES, has_crc=True)])
    byte = DirectoryFiles(tmp_path).read(FILE).index(b"__CRC32#")
    assert inflict(DirectoryFiles(tmp_path), Damage(kind="flip", where="log"), At(byte)).is_unseen


@pytest.mark.parametrize(("bit", "is_unseen"), [(0, True), (2, False), (3, True)])
def test_a_record_that_says_it_enters_no_queue(tmp_path: Path, bit: int, is_unseen: bool) -> None:
    """A prepared transaction; compressed, or one that was committed, is in its queue."""
    Log(tmp_path).append([Message(properties=PROPERTIES)])
    hit = inflict(DirectoryFiles(tmp_path), Damage(kind="flip", where="log"), At(39, bit))
    assert hit.is_unseen == is_unseen


def without_queues(root: Path, _log: Log) -> None:
    shutil.rmtree(root / "consumequeue")


def made_again(root: Path, log: Log) -> None:
    """Recreate the deleted topic: its queue begins with a later record."""
    put_units(root, UNIT.pack(log.offsets[1], log.sizes[1], 0))


def with_one_empty_unit(root: Path, log: Log) -> None:
    put_units(root, PRE_BLANK + UNIT.pack(log.offsets[1], log.sizes[1], 0))


def put_units(root: Path, units: bytes) -> None:
    (path,) = root.glob("consumequeue/T/0/*")
    path.write_bytes(units + bytes(100))


def as_batches(root: Path, log: Log) -> None:
    without_queues(root, log)
    path = root / f"batchconsumequeue/T/0/{0:020d}"
    path.parent.mkdir(parents=True)
    rows = zip(log.offsets, log.sizes, strict=True)
    path.write_bytes(
        b"".join(BATCH_UNIT.pack(*row, 0, 1, at, 1, -1, 0) for at, row in enumerate(rows))
    )


@pytest.mark.parametrize(
    ("change", "number", "is_unseen"),
    [
        (without_queues, 0, True),
        (made_again, 0, True),
        (made_again, 1, False),
        (with_one_empty_unit, 0, True),
        (as_batches, 0, False),
        (as_batches, 1, False),
    ],
)
@pytest.mark.parametrize("field", ["queue-id", "queue-offset", "topic"])
def test_only_a_queue_with_a_record_knows_its_place(
    tmp_path: Path,
    field: str,
    change: Callable[[Path, Log], None],
    number: int,
    is_unseen: bool,
) -> None:
    """Seed 1330256: a record of a topic that had been deleted."""
    log = Log(tmp_path).append([Message(properties=PROPERTIES)] * 2)
    offset = log.offsets[number]
    change(tmp_path, log)
    at = FIELDS[field][0] if field != "topic" else FIELDS["body"][0] + len(b"hello") + 1
    hit = inflict(DirectoryFiles(tmp_path), Damage(kind="flip", where="log"), At(offset + at))
    assert hit.is_unseen == is_unseen


@pytest.mark.parametrize(
    ("field", "number", "is_unseen"),
    [
        ("queue-id", 1, False),
        ("queue-id", 2, True),
        ("topic", 1, False),
        ("topic", 2, True),
        ("queue-offset", 1, False),
        ("queue-offset", 2, False),
    ],
)
def test_the_last_record_before_its_dispatch_lacks_nowhere(
    tmp_path: Path, field: str, number: int, is_unseen: bool
) -> None:
    log = Log(tmp_path).append([Message(properties=PROPERTIES)] * 3)
    put_units(tmp_path, UNIT.pack(log.offsets[0], log.sizes[0], 0))
    at = FIELDS[field][0] if field != "topic" else FIELDS["body"][0] + len(b"hello") + 1
    hit = inflict(
        DirectoryFiles(tmp_path), Damage(kind="flip", where="log"), At(log.offsets[number] + at)
    )
    assert hit.is_unseen == is_unseen


def test_the_index_tells_of_keys_without_a_queue(tmp_path: Path) -> None:
    log = Log(tmp_path).append([Message(properties=PROPERTIES)])
    without_queues(tmp_path, log)
    byte = DirectoryFiles(tmp_path).read(FILE).index(b"k\x02TAGS")
    hit = inflict(DirectoryFiles(tmp_path), Damage(kind="flip", where="log"), At(byte))
    assert not hit.is_unseen


def test_batch_queues_are_queues(tmp_path: Path) -> None:
    log = Log(tmp_path).append([Message()])
    as_batches(tmp_path, log)
    files = DirectoryFiles(tmp_path)
    files.write(kept_path := "rocketbed.cut/consumequeue/T/0", b"stood in the way")
    hit = inflict(files, Damage(kind="delete", where="queue"), Random(1))
    assert hit == Hit(f"batchconsumequeue/T/0/{0:020d}")
    assert files.paths() == [FILE, kept_path]
