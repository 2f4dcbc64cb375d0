"""Whether a simulated node's durable mark ever names what is not on disk (S11).

Looked at whenever the mark's directory is synced, which is what makes a mark count: so a mark that
is ahead shows at once, and no power cut has to come just then.
"""

from typing import Final

from chaos.sim.disk import SimDisk
from rocketbed.inspect.marks import CKPT_NAME, read_marks

ROOT: Final = "/store"
_PATH: Final = f"{ROOT}/{CKPT_NAME}"


def mark_ahead(disk: SimDisk, kind: str, path: str, durable: int) -> int | None:
    """W of the mark that this event of a disk makes durable, if it is beyond `durable`."""
    if kind != "sync_dir" or path != ROOT:
        return None
    try:
        data = disk.contents(_PATH)
    except FileNotFoundError:
        return None
    marks = read_marks(data, b"", abort_lines=None, checkpoint=b"")
    return marks.durable_offset if marks is not None and marks.durable_offset > durable else None
