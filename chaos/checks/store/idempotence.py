"""Recovery is idempotent: recover(recover(x)) = recover(x), byte for byte.

An image is booted twice on a simulated disk, by the node's own store: the second boot must not
change what the first one left. Files of times and marks (checkpoint, abort, the durable mark) are
not compared, nor are zeros at the end of a file.
"""

import os
from typing import Any

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.inode import Inode
from rocketbed.chaos.backends.sim.namespace import Namespace
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World

ROOT = "/store"
_COMPARED = ("commitlog", "consumequeue", "batchconsumequeue", "index")


@check("recovery-idempotent", "images", needs_history=False)
def recovery_idempotent(case: Case, findings: Findings) -> int:
    """An image that is recovered twice has the bytes of one that is recovered once.

    At most `Case.recoveries` images are, chosen by the run's seed.
    """
    evidence = case.evidence
    if not case.recoveries:
        raise NotApplicable("not requested")
    if evidence.foreign:
        raise NotApplicable(
            f"our own store would boot what {evidence.foreign} left, which says nothing about it"
        )
    images = [image for image in evidence.images if image.messages.values]
    if not images:
        raise NotApplicable("no image with messages was taken in the run")
    first = evidence.record.seed % len(images)
    chosen = (images[first:] + images[:first])[: case.recoveries]
    for image in chosen:
        problem = boot_twice(image)
        if problem and evidence.disks.damaged_by(image.name, image.image_record.time_ns) is None:
            text = f"{image.label}: {problem}"
            findings.add(text, node=image.name, time_ns=image.image_record.time_ns)
    return len(chosen)


def boot_twice(image: NodeLog) -> str:
    """Return what the second boot changes, or why one of them fails; empty if all is well."""
    config = _config(image)
    after_first, first = _boot(config, load_image(image.directory.root, ROOT), boots=2)
    if isinstance(first, str):
        return f"the first boot fails: {first}"
    after_second, second = _boot(config, after_first, boots=3)
    if isinstance(second, str):
        return f"the second boot fails: {second}"
    if first != second:
        return f"the first boot recovers to {first}, the second to {second}"
    for path in sorted({*after_first.paths(), *after_second.paths()}):
        if path.removeprefix(f"{ROOT}/").partition("/")[0] not in _COMPARED:
            continue
        if _content(after_first, path) != _content(after_second, path):
            return f"the second boot changes {path.removeprefix(ROOT + '/')}"
    return ""


def load_image(directory: str, root: str) -> DiskImage:
    """Copy a real directory to a simulated disk at rest, all of it durable, below `root`."""
    namespace = Namespace()
    for base, _, files in sorted(os.walk(directory)):
        relative = os.path.relpath(base, directory)
        place = root if relative == "." else f"{root}/{relative}"
        for names in (namespace.visible, namespace.durable):
            names.add_directory(place)
        for name in sorted(files):
            with open(os.path.join(base, name), "rb") as file:
                data = file.read()
            inode = Inode()
            inode.data = bytearray(data)
            inode.length = inode.allocated = len(data)
            for names in (namespace.visible, namespace.durable):
                names.put(f"{place}/{name}", inode)
    return DiskImage(namespace)


async def _open(world: World, config: StoreConfig) -> int:
    store = await MessageStore.open(world, config)
    assert store.recovery is not None
    return store.recovery.end


def _boot(config: StoreConfig, image: DiskImage, *, boots: int) -> tuple[DiskImage, int | str]:
    """Return the disk after a boot, and the end of the log, or why the boot failed."""
    try:
        run = run_solo(_open, config, image=image, boots=boots)
    except Exception as error:
        return image, f"{type(error).__name__}: {error}"
    if run.outcome != "ended":
        return run.image, f"it is {run.outcome}"
    return run.image, int(run.value)


def _config(image: NodeLog) -> StoreConfig:
    directory = image.directory
    marked = dict(directory.marks.sizes) if directory.marks is not None else {}
    sizes: dict[str, Any] = {
        "segment_size": directory.sizes.segment,
        "queue_segment_size": directory.sizes.queue_segment,
        "batch_queue_segment_size": directory.sizes.batch_queue_segment,
    }
    if directory.index_layout is not None:
        sizes["index_slots"] = directory.index_layout.slots
        sizes["index_entries"] = directory.index_layout.entries
    return StoreConfig(root=ROOT, **(sizes | marked))


def _content(image: DiskImage, path: str) -> bytes:
    try:
        return image.contents(path).rstrip(b"\0")
    except FileNotFoundError:
        return b""
