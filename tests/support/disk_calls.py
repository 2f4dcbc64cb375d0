"""Random calls that change a disk, made the same way on the model and on a real one."""

import os
from dataclasses import dataclass

from hypothesis import strategies as st

from rocketbed.world.api import Disk

NAMES = ("a", "b", "d/x", "d/y")
DIRECTORIES = ("", "d")
SIZES = (1, 300, 512, 4096, 5000, 9000)
OFFSETS = (0, 100, 512, 4000, 4096, 8192, 12288)


@dataclass(frozen=True)
class Call:
    """A call; a call that does not fit the state of the disk is left out on both sides."""

    kind: str
    name: str
    target: str = ""
    offset: int = 0
    size: int = 0


names = st.sampled_from(NAMES)
CALLS = st.one_of(
    st.builds(Call, st.just("create"), names),
    st.builds(
        Call,
        st.sampled_from(("write", "write", "zero", "punch")),
        names,
        offset=st.sampled_from(OFFSETS),
        size=st.sampled_from(SIZES),
    ),
    st.builds(
        Call, st.sampled_from(("truncate", "allocate")), names, size=st.sampled_from((0, *SIZES))
    ),
    st.builds(Call, st.just("sync"), names),
    st.builds(Call, st.just("sync_dir"), st.sampled_from(DIRECTORIES)),
    st.builds(Call, st.just("rename"), names, target=names),
    st.builds(Call, st.just("unlink"), names),
    st.builds(Call, st.sampled_from(("mkdir", "rmdir")), st.just("d")),
)
SEQUENCES = st.lists(st.lists(CALLS, min_size=1, max_size=14), min_size=1, max_size=8)


async def perform(disk: Disk, base: str, call: Call, fill: bytes) -> None:
    """Make a call, with the same code for the model and for the real disk."""
    path = os.path.join(base, call.name) if call.name else base
    if call.kind == "create":
        disk.open(path, create=True).close()
    elif call.kind == "rename":
        disk.rename(path, os.path.join(base, call.target))
    elif call.kind == "unlink":
        disk.unlink(path)
    elif call.kind == "mkdir":
        disk.makedirs(path)
    elif call.kind == "rmdir":
        disk.rmdir(path)
    elif call.kind == "sync_dir":
        await disk.sync_dir(path)
    else:
        file = disk.open(path)
        size = min(call.size, max(0, file.size() - call.offset))
        if call.kind == "write":
            file.write_at(call.offset, fill * call.size)
        elif call.kind == "zero" and size:
            file.zero(call.offset, size)
        elif call.kind == "punch" and size:
            file.punch(call.offset, size)
        elif call.kind == "truncate":
            file.truncate(call.size)
        elif call.kind == "allocate":
            file.allocate(call.size)
        elif call.kind == "sync":
            await file.sync()
        file.close()
