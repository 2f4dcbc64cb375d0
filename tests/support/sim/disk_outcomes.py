"""Disk contents that a power cut can leave by the disk model: the oracle that real file systems
answer to.

`lose_power` draws one outcome; this says of any outcome whether it could have been drawn, in the
harshest mode (`random`). What ext4 leaves after a real cut has to be among these, or a store that
passes here could lose more on a real machine (tests/property/test_disk_against_ext4.py).
"""

from collections.abc import Iterator, Mapping, Set

from rocketbed.chaos.backends.sim.inode import SECTOR, Inode
from rocketbed.chaos.backends.sim.namespace import Change, Names, Namespace, split


def refusal(namespace: Namespace, files: Mapping[str, bytes], directories: Set[str]) -> str:
    """Reason why an outcome is impossible; empty when the model allows it.

    `files` maps each path to its contents, `directories` are all paths of directories but the
    roots. `namespace` is the disk before the cut.
    """
    reasons = []
    for names in possible_names(namespace):
        if set(names.files) != set(files) or _directories(names) != directories:
            continue
        wrong = [
            f"{path}: {reason}"
            for path, inode in sorted(names.files.items())
            if (reason := content_refusal(inode, files[path]))
        ]
        if not wrong:
            return ""
        reasons.append("; ".join(wrong))
    return " or ".join(dict.fromkeys(reasons)) or (
        f"no order of changes leaves these names: {sorted(files)}, directories "
        f"{sorted(directories)}"
    )


def possible_names(namespace: Namespace) -> Iterator[Names]:
    """Every set of names that a cut could leave, each once."""
    states = {_key(namespace.durable, frozenset()): (namespace.durable, frozenset[str]())}
    for change in namespace.pending:
        following: dict[object, tuple[Names, frozenset[str]]] = {}
        for names, broken in states.values():
            lost = broken | frozenset(change.names)
            following[_key(names, lost)] = (names, lost)
            if broken.isdisjoint(change.names):
                applied = _applied(names, change)
                following[_key(applied, broken)] = (applied, broken)
        states = following
    known_keys = set()
    for names, _ in states.values():
        key = _key(names, frozenset())
        if key not in known_keys:
            known_keys.add(key)
            yield names


def content_refusal(inode: Inode, data: bytes) -> str:
    """Reason why a file cannot have these contents after a cut; empty when it can."""
    if not _length_is_possible(inode, len(data)):
        return f"length {len(data)} is not one of {possible_lengths(inode)}"
    for start in range(0, len(data), SECTOR):
        actual = data[start : start + SECTOR]
        possible = possible_sectors(inode, start // SECTOR)
        if not any(one[: len(actual)] == actual for one in possible):
            possible_text = ", ".join(sorted({_runs_text(one[: len(actual)]) for one in possible}))
            return f"bytes from {start} on are {_runs_text(actual)}, not {possible_text}"
    return ""


def possible_lengths(inode: Inode) -> list[tuple[int, int]]:
    """Lengths after a cut, as (exactly this, up to this in steps of a sector)."""
    lengths = [(inode.length, inode.length)]
    for generation in reversed(inode.generations):
        if generation.length is not None:
            reach = max(up_to for _, up_to in lengths) if generation.grown else generation.length
            lengths.append((generation.length, max(reach, generation.length)))
    return lengths


def possible_sectors(inode: Inode, sector: int) -> list[bytes]:
    """Contents of a sector after a cut, filled up with zeros, the newest first."""
    start = sector * SECTOR
    versions = [bytes(inode.data[start : start + SECTOR])]
    versions.extend(
        generation.sectors[sector]
        for generation in reversed(inode.generations)
        if sector in generation.sectors
    )
    if sector in inode.forsaken:
        versions.append(inode.forsaken[sector])
    return [one.ljust(SECTOR, b"\0") for one in versions]


def _length_is_possible(inode: Inode, length: int) -> bool:
    return any(
        length == exact or (exact < length < up_to and length % SECTOR == 0)
        for exact, up_to in possible_lengths(inode)
    )


def _applied(names: Names, change: Change) -> Names:
    """The names after a change; the files stay the same objects."""
    after = Names()
    after.files = dict(names.files)
    after.children = {directory: dict(inside) for directory, inside in names.children.items()}
    change.apply(after)
    return after


def _directories(names: Names) -> set[str]:
    return {path for path in names.children if split(path)[0] != path and path != "."}


def _key(names: Names, broken: frozenset[str]) -> object:
    files = frozenset((path, id(inode)) for path, inode in names.files.items())
    return files, frozenset(names.children), broken


def _runs_text(data: bytes) -> str:
    """Runs of equal bytes, short enough to read."""
    runs: list[tuple[int, int]] = []
    for byte in data:
        if runs and runs[-1][0] == byte:
            runs[-1] = (byte, runs[-1][1] + 1)
        else:
            runs.append((byte, 1))
    return " ".join(f"{byte:02x}*{count}" for byte, count in runs[:8])
