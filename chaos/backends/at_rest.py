"""Damage to the files of a store at rest, while no process has them open.

The files come from a backend; the place of the damage is drawn from the run's seed. Source:
chaos.md 3.2.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Final, Protocol

from rocketbed.chaos.plan.damage import FIELDS, FILES, STRAYS, Damage, Hit
from rocketbed.inspect.consumequeue import BATCH_UNIT, PRE_BLANK_SIZE, UNIT
from rocketbed.inspect.record import Fault, dissect
from rocketbed.inspect.record import Record as Good
from rocketbed.node.store.aside import CUT_DIR
from rocketbed.node.store.marks import CKPT_NAME, decode_mark
from rocketbed.wire.message import (
    HEAD,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

REPEATED: Final = ("TAGS", "KEYS", "UNIQ_KEY")
"""Properties that derived files repeat."""
SECTOR: Final = 512
ZEROED_MAX: Final = 4096


class StoreFiles(Protocol):
    """Files of a store that no process has open, by their paths below its directory."""

    def paths(self) -> list[str]:
        """Return all paths, sorted."""

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: bytes) -> None:
        """Write a file, synced at once; created if absent."""

    def remove(self, path: str) -> None: ...


class DirectoryFiles:
    """The files of a directory (`StoreFiles`)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def paths(self) -> list[str]:
        return sorted(
            str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file()
        )

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        whole = self._root / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(data)

    def remove(self, path: str) -> None:
        (self._root / path).unlink()


@dataclass(frozen=True, slots=True)
class Record:
    path: str
    at: int
    """Position in its file, bytes."""
    size: int


def records(files: StoreFiles) -> list[Record]:
    """Return the complete records of the log, in order."""
    complete = []
    for path in _paths(files, "log"):
        data, at = files.read(path), 0
        if not (name := path.rpartition("/")[2]).isdigit():
            continue
        while at + HEAD.size <= len(data):
            head = HEAD.unpack_from(data, at)
            if head[6] != int(name) + at or head[0] < HEAD.size:
                break
            complete.append(Record(path, at, head[0]))
            at += head[0]
    return complete


def inflict(files: StoreFiles, damage: Damage, random: Random) -> Hit:
    """Damage a store. Return what was hit."""
    if damage.kind == "stray":
        for path in STRAYS:
            files.write(path, b"not a file of the store")
        return Hit(", ".join(STRAYS))
    if damage.kind == "flip" and damage.where not in FILES:
        complete = records(files)
        if not complete:
            return Hit()
        record = complete[-1] if damage.last else random.choice(complete)
        byte = record.at + _byte(files, record, damage.where, random)
        return _flip(files, record.path, byte, random)
    paths = [path for path in _paths(files, damage.where) if files.read(path).strip(b"\0")]
    if not paths:
        return Hit()
    path = paths[-1] if damage.last else random.choice(paths)
    if damage.kind == "delete":
        files.remove(path)
        return Hit(path)
    data = bytearray(files.read(path))
    written = len(data.rstrip(b"\0"))
    if damage.kind == "flip":
        return _flip(files, path, random.randrange(written), random)
    if damage.kind == "truncate":
        size = random.randrange(written)
        files.write(path, bytes(data[:size]))
        return Hit(f"{path} from {size} on")
    begin, end = _range(files, damage, path, written, len(data), random)
    data[begin:end] = _misdirected(data, begin, end, random, damage)
    files.write(path, bytes(data))
    return Hit(f"{path} bytes {begin} to {end}")


def _range(
    files: StoreFiles, damage: Damage, path: str, written: int, length: int, random: Random
) -> tuple[int, int]:
    """Return the range to overwrite; in a log segment it begins at a record."""
    begins = (
        [record.at for record in records(files) if record.path == path]
        if damage.where == "log"
        else []
    )
    begin = random.choice(begins[-1:] if damage.last else begins) if begins else 0
    if damage.kind == "old":  # an old copy of a preallocated file ends in zeros
        return (begin if begins else random.randrange(written)), length
    if damage.kind == "misdirect":
        begin -= begin % SECTOR
        return begin, min(begin + SECTOR, length)
    if not begins:
        begin = random.randrange(written)
    return begin, min(begin + random.randint(1, ZEROED_MAX), length)


def _misdirected(data: bytearray, begin: int, end: int, random: Random, damage: Damage) -> bytes:
    """Return the new bytes of a range: zeros, or a sector that belongs elsewhere."""
    if damage.kind != "misdirect":
        return bytes(end - begin)
    source = random.randrange(0, len(data), SECTOR)
    return bytes(data[source : source + end - begin]).ljust(end - begin, b"\0")


def _flip(files: StoreFiles, path: str, byte: int, random: Random) -> Hit:
    data = bytearray(before := files.read(path))
    data[byte] ^= 1 << random.randrange(8)
    hit = [
        record
        for record in records(files)
        if record.path == path and 0 <= byte - record.at < record.size
    ]
    files.write(path, bytes(data))
    unseen = any(_is_unseen(files, before, bytes(data), record) for record in hit)
    return Hit(f"{path} byte {byte}", unseen)


def _is_unseen(files: StoreFiles, before: bytes, after: bytes, record: Record) -> bool:
    """Return whether an altered record is still valid for all that a node can compare it with."""
    offset = int(record.path.rpartition("/")[2]) + record.at
    original, altered = (dissect(data, record.at, offset) for data in (before, after))
    if isinstance(original, Fault) or isinstance(altered, Fault):
        return False
    if _repeated(original) != _repeated(altered):
        return False
    return _place(original) == _place(altered) or not _is_exposed(files, original, altered)


def _repeated(record: Good) -> tuple[object, ...]:
    """Return what other files repeat of a record: its end (the next record) and its properties (the
    index)."""
    return record.size, [record.properties.get(name) for name in REPEATED]


def _place(record: Good) -> tuple[tuple[object, ...], int]:
    """Return what a consume queue repeats of a record: its queue, if it has a unit at all, and its
    offset in the queue."""
    kind = record.sys_flag & TRANSACTION_MASK
    has_unit = kind not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    return (record.topic, record.queue_id, has_unit), record.queue_offset


def _is_exposed(files: StoreFiles, record: Good, altered: Good) -> bool:
    """Return whether a consume queue, as it is or as the next start rebuilds it, would expose the
    altered record: a unit points at it, or a gap shows before the next one.

    The units of a deleted topic expose nothing, even if it was created again. When a queue's last
    record moves to another queue, no gap shows.
    """
    units: set[int] = set()
    for path in _paths(files, "queue"):
        kind, *place, name = path.split("/")
        form = BATCH_UNIT if kind.startswith("batch") else UNIT
        if name.isdigit() and place == [record.topic, str(record.queue_id)]:
            data = files.read(path)
            unpacked = form.iter_unpack(data[: len(data) // form.size * form.size])
            units |= {unit[0] for unit in unpacked if unit[1] not in (0, PRE_BLANK_SIZE)}
    # After the durable mark a start dispatches again, whatever the units say.
    mark = decode_mark(files.read(CKPT_NAME)) if CKPT_NAME in files.paths() else None
    if record.offset in units and (mark is None or record.offset < mark.offset):
        return True
    if record.offset not in units and record.offset <= max(units, default=record.offset):
        return False
    return _place(record)[0] == _place(altered)[0] or _has_next(files, record)


def _has_next(files: StoreFiles, record: Good) -> bool:
    """Return whether a later record is of the same queue."""
    data = {path: files.read(path) for path in _paths(files, "log")}
    for candidate in records(files):
        offset = int(candidate.path.rpartition("/")[2]) + candidate.at
        later = (
            dissect(data[candidate.path], candidate.at, offset) if offset > record.offset else None
        )
        if isinstance(later, Good) and _place(later)[0] == _place(record)[0]:
            return True
    return False


def _byte(files: StoreFiles, record: Record, field: str, random: Random) -> int:
    """Return a random byte of a field, as position in its record."""
    body_at = FIELDS["body"][0]
    head = files.read(record.path)[record.at : record.at + body_at]
    body = int.from_bytes(head[-4:], "big")
    if field == "topic":
        return body_at + body + 1
    begin, length = FIELDS[field]
    return begin + random.randrange(max(body, 1) if field == "body" else length)


def _paths(files: StoreFiles, kind: str) -> list[str]:
    # Files that were put aside keep their path below that folder, and are not part of the store.
    live = (path for path in files.paths() if not path.startswith(CUT_DIR))
    return [path for path in live if fnmatchcase(path, FILES[kind])]
