"""List processes of this machine, from `/proc`."""

from collections import defaultdict
from pathlib import Path


def tree(root: int) -> list[int]:
    """A process and its descendants, parents first. Some may have ended meanwhile."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            children[int(text.rpartition(")")[2].split()[1])].append(int(entry.name))
    pids = [root]
    for pid in pids:
        pids += children[pid]
    return pids
