"""Which files of a damaged directory are its log, and how long its segments are. Pure reading.

The mark may be gone, so that only the files themselves tell their size; and a file with a
segment's name need not be one, so that nothing may be made up to it.
"""

from rocketbed.node.store.config import SEGMENT_SIZE, StoreConfig
from rocketbed.node.store.errors import StoreError
from rocketbed.node.store.files import file_size
from rocketbed.node.store.marks import Mark
from rocketbed.node.store.parts import StoreParts
from rocketbed.node.store.segments import segment_name
from rocketbed.node.store.view import LogView, holds_record, is_segment_name
from rocketbed.world.api import World

KEY = "mappedFileSizeCommitLog"


class NotHealed(StoreError):
    """What is missing is not here yet; the message says why, what was changed, and what to do."""


def file_lengths(world: World, directory: str) -> dict[int, int]:
    """Lengths of the files with a segment's name, by start. Raises `NotHealed`, `OSError`."""
    lengths = {}
    for name in filter(is_segment_name, world.disk.listdir(directory)):
        path = f"{directory}/{name}"
        if world.disk.exists(path) and not world.disk.is_file(path):
            raise NotHealed(f"{path} is no file: move it away, then heal again")
        if world.disk.exists(path):
            lengths[int(name)] = file_size(world, path)
    return dict(sorted(lengths.items()))


def segment_size(config: StoreConfig, mark: Mark | None, lengths: dict[int, int]) -> int:
    """Length of a segment: the mark's, else what is set, else the longest file's.

    What is set counts as nobody's word where it is the default: the command may be given without
    the node's configuration. Raises `NotHealed` where the mark, the files and what is set differ.
    """
    is_set = config.segment_size != SEGMENT_SIZE
    if mark is not None and mark.sizes:
        size, source = mark.sizes[0], f"{config.root} was written with {KEY}={mark.sizes[0]}"
        if is_set and config.segment_size != size:
            raise NotHealed(f"{source}, but {KEY}={config.segment_size} is set: leave that out")
    elif is_set or not any(lengths.values()):
        size = config.segment_size
        source = f"{KEY} is {size}"
    else:
        size = max(lengths.values())
        source = f"the longest segment has {size} bytes"
    for start, length in lengths.items():
        if length > size or start % size:
            raise NotHealed(
                f"{config.log_dir}/{segment_name(start)}, {length} bytes long, cannot be a segment"
                f" of this log: {source}. Move the file away, or give --set {KEY}=SIZE as this"
                " directory was written with"
            )
    return size


async def view_of(parts: StoreParts, lengths: dict[int, int], *, first: int, known: int) -> LogView:
    """The log as it should be, from its beginning to `known`, or to where its files go on.

    `first` and `known`: where it begins, and up to where it was on disk; -1 if that is not known.
    Raises `NotHealed` for a file that is no part of it.
    """
    size = parts.config.segment_size
    end = -(-known // size) * size if known > 0 else next(iter(lengths), 0)
    members = []
    for start, length in lengths.items():
        joins = start < end or (start == end and length == size)
        if joins or (length and await holds_record(parts, start, length)):
            members.append(start)
            end = max(end, start + size)
        elif length:
            raise NotHealed(
                f"{parts.log.segments.path(start)} is no part of the log: it lies behind what was"
                f" known to be on disk, which ends in the segment before {end}, and no record"
                " stands in it. Way out: move the file away"
            )
    begin = min([first] * (first >= 0) + members, default=0)
    starts = list(range(begin - begin % size, end, size)) if members or known > 0 else []
    return LogView(parts, starts, lengths)
