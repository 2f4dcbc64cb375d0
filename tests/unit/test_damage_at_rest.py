"""Which flipped bits of a log nobody can see: what they hit is repeated nowhere."""

from pathlib import Path
from random import Random

import pytest

from rocketbed.chaos.damage import FIELDS, Damage, FilesAtRest, Hit, inflict
from tests.support.logs import Log, Message

PROPERTIES = "KEYS\x01k\x02TAGS\x01red\x02ZONE\x01west\x02"
FILE = f"commitlog/{0:020d}"


class At(Random):
    """Flips the lowest bit of one byte."""

    def __init__(self, byte: int) -> None:
        super().__init__(1)
        self.byte = byte

    def randrange(self, start: int, *_: object) -> int:
        return 0 if start == 8 else self.byte


@pytest.mark.parametrize("has_crc", [False, True])
@pytest.mark.parametrize("field", [*FIELDS, "topic"])
def test_fields_of_a_record(tmp_path: Path, field: str, has_crc: bool) -> None:
    Log(tmp_path).append([Message(properties=PROPERTIES, has_crc=has_crc)])
    hit = inflict(FilesAtRest(tmp_path), Damage(kind="flip", where=field), Random(7))
    assert hit.is_unseen == (field == "time" and not has_crc)


@pytest.mark.parametrize(
    ("text", "is_unseen"), [("ZONE", True), ("west", True), ("red", False), ("KEYS", False)]
)
@pytest.mark.parametrize("has_crc", [False, True])
def test_properties_of_a_record(tmp_path: Path, text: str, is_unseen: bool, has_crc: bool) -> None:
    """Seeds 1283168 and 1283188."""
    Log(tmp_path).append([Message(properties=PROPERTIES, has_crc=has_crc)])
    byte = FilesAtRest(tmp_path).read(FILE).index(text.encode())
    hit = inflict(FilesAtRest(tmp_path), Damage(kind="flip", where="log"), At(byte))
    assert hit == Hit(f"{FILE} byte {byte}", is_unseen and not has_crc)


def test_the_name_of_a_checksum_itself(tmp_path: Path) -> None:
    Log(tmp_path).append([Message(properties=PROPERTIES, has_crc=True)])
    byte = FilesAtRest(tmp_path).read(FILE).index(b"__CRC32#")
    assert inflict(FilesAtRest(tmp_path), Damage(kind="flip", where="log"), At(byte)).is_unseen
