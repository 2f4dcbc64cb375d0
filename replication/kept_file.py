"""Small state files of a replica: three lines, as the store's mark.

Kind and version, JSON, CRC-32C of the JSON. Replaced by a temporary file, fsync, rename, fsync of
the directory, so that a crash leaves the old one or the new one.
"""

import errno
from typing import Any, Final

import crcmod.predefined
import orjson

from rocketbed.replication.errors import NoRoom, ReplicationError
from rocketbed.world.api import World

SIZE_MAX: Final = 1 << 20
"""Bytes; a history of 30,000 epochs."""
LACKS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Errors of a temporary lack of room or descriptors."""
_crc32c = crcmod.predefined.mkCrcFun("crc-32c")


class KeptFileDamaged(ReplicationError):
    """Such a file does not have the contents that were written."""


class KeptFileUnwritable(ReplicationError):
    """Such a file could not be written: the old one is in place."""


def read_kept(world: World, path: str, kind: str) -> dict[str, Any] | None:
    """Return the contents; None if there is no file. Raises `KeptFileDamaged`, `OSError`."""
    disk = world.disk
    if not disk.exists(path):
        return None
    if not disk.is_file(path):
        raise KeptFileDamaged("it is no file")
    file = disk.open(path, writable=False)
    try:
        if not 0 < file.size() <= SIZE_MAX:
            raise KeptFileDamaged(f"it has {file.size()} bytes")
        data = file.read_at(0, file.size())
    finally:
        file.close()
    lines = data.split(b"\n")
    if len(lines) != 4 or lines[0] != kind.encode() or b"%08x" % _crc32c(lines[1]) != lines[2]:
        first = lines[0][:40].decode("ascii", "replace")
        is_other = first != kind and first.startswith(kind.partition(" ")[0])
        raise KeptFileDamaged(f"it is a {first!r}" if is_other else "it does not match its CRC")
    content = orjson.loads(lines[1])
    if not isinstance(content, dict):
        raise KeptFileDamaged("it holds no object")
    return content


async def write_kept(
    world: World, directory: str, name: str, kind: str, value: dict[str, Any]
) -> None:
    """Replace the file, durably. Raises `NoRoom` with the old one on disk, `KeptFileUnwritable`
    with the old or the new one."""
    path = f"{directory}/{name}"
    text = orjson.dumps(value)
    is_old = True
    try:
        await _replace(world, path, b"%s\n%s\n%08x\n" % (kind.encode(), text, _crc32c(text)))
        is_old = False
        await world.disk.sync_dir(directory)
    except OSError as exc:
        if is_old and exc.errno in LACKS:
            raise NoRoom(f"{path} cannot be written: {exc.strerror}") from exc
        raise KeptFileUnwritable(
            f"{path} cannot be written: {exc.strerror}; make room or see to the disk, then start"
            " the node again"
        ) from exc


async def _replace(world: World, path: str, data: bytes) -> None:
    disk, temporary = world.disk, f"{path}.new"
    if disk.exists(temporary):
        disk.unlink(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.write_at(0, data)
        await file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
