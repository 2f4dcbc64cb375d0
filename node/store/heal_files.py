"""The files of a damaged directory that are its log, and the length of its segments. Only reads.

The mark may be lost, so that only the files themselves show their size; and a file with a segment's
name need not be one, so that nothing may be invented up to it.
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
    """A hole that is not filled; the message says why, what was changed, and what to do."""


def file_lengths(world: World, directory: str) -> dict[int, int]:
    """Return the lengths of the files with a segment's name, by start. Raises `NotHealed`,
    `OSError`."""
    lengths = {}
    for name in filter(is_segment_name, world.disk.listdir(directory)):
        path = f"{directory}/{name}"
        if world.disk.exists(path) and not world.disk.is_file(path):
            raise NotHealed(f"{path} is no file: move it away, then heal again")
        if world.disk.exists(path):
            lengths[int(name)] = file_size(world, path)
    return dict(sorted(lengths.items()))


def segment_size(config: StoreConfig, mark: Mark | None, lengths: dict[int, int]) -> int:
    """Return the length of a segment: the mark's, else the setting, else the longest file's.

    A setting with the default value does not count: the command may be given without the node's
    configuration. Raises `NotHealed` if the mark, the files and the setting differ.
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


async def view_of(
    parts: StoreParts, lengths: dict[int, int], *, first: int, durable_end: int
) -> LogView:
    """Return a view of the complete log, from its beginning to `durable_end`, or to where its files
    continue.

    `first` and `durable_end`: its start, and the end of what was on disk; -1 if unknown. Raises
    `NotHealed` for a file that is not a part of it.
    """
    size = parts.config.segment_size
    end = -(-durable_end // size) * size if durable_end > 0 else next(iter(lengths), 0)
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
    starts = list(range(begin - begin % size, end, size)) if members or durable_end > 0 else []
    return LogView(parts, starts, lengths)
