"""Laws of a node's small files, held at every event of its disk, so that no power cut has to come
just then: the durable mark never names what is not on disk (S11), and a table is only ever replaced
as a whole, never written under its own name (S15).
"""

from typing import Final

from rocketbed.chaos.sim.disk import SimDisk
from rocketbed.inspect.marks import CKPT_NAME, read_marks

ROOT: Final = "/store"
TABLES: Final = f"{ROOT}/config/"
_PATH: Final = f"{ROOT}/{CKPT_NAME}"


def table_in_place(kind: str, path: str) -> bool:
    """Whether this event of a disk leaves a table neither old nor new until it is synced."""
    is_table = path.startswith(TABLES) and path.endswith(".json")
    return is_table and kind in ("write", "truncate")


def mark_ahead(disk: SimDisk, kind: str, path: str, durable: int) -> int | None:
    """W of the mark that this event of a disk makes durable, if it is beyond `durable`.

    Syncing its directory is what makes a mark count.
    """
    if kind != "sync_dir" or path != ROOT:
        return None
    try:
        data = disk.contents(_PATH)
    except FileNotFoundError:
        return None
    marks = read_marks(data, b"", abort_lines=None, checkpoint=b"")
    return marks.durable_offset if marks is not None and marks.durable_offset > durable else None
