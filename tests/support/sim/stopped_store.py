"""A store that was stopped twice, and starts after changes of its directory."""

import struct
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any, Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.store import MessageStore
from tests.model.alone import run_alone
from tests.model.at_rest import AtRest, Change, check_answers, edited, serve
from tests.model.lives import check_directory, raise_wrong
from tests.model.model import Model
from tests.model.store import ROOT, Life, Topics, settings

CHECKPOINT, ABORT = f"{ROOT}/checkpoint", f"{ROOT}/abort"
COUNT: Final = 14
STRAYS: Final = (
    "consumequeue/A/x", "consumequeue/A/007", "consumequeue/A/1/notes", "consumequeue/notes",
    "batchconsumequeue/C/-1", "batchconsumequeue/C/0/notes", "index/notes",
)  # fmt: skip


@cache
def stopped_twice() -> tuple[AtRest, DiskImage]:
    """Return a store after its second clean stop, and the disk after the first."""
    config = settings(Random("starts"), append_property_crc=False)
    model, images = Model(segment=config.segment_size), [DiskImage()]
    for number in range(2):
        life = Life(model, Random(f"starts/{number}"), 0, power=False)
        run = run_alone(partial(life.fill, count=COUNT, mixed=True), config, image=images[-1])
        raise_wrong(life)
        images.append(run_alone(partial(serve, stops=True), config, image=run.image).image)
    return AtRest(images[-1], model, config), images[-2]


def write(path: str, data: bytes) -> Change:
    return lambda disk: disk.replace_contents(path, data)


def remove(path: str) -> Change:
    return lambda disk: disk.remove_name(path)


def every(*changes: Change) -> Change:
    def change(disk: SimDisk) -> None:
        for part in changes:
            part(disk)

    return change


def checkpoint(physic_ms: int, logics_ms: int) -> bytes:
    return struct.pack(">6q", physic_ms, logics_ms, physic_ms, 0, 0, 0).ljust(4096, b"\0")


def check_start(
    change: Change, *, rebuilds: bool, reason: str = "", strays: bool = False, **settings: Any
) -> None:
    """Start after a change; a preview has to announce what the start does."""
    at_rest, _ = stopped_twice()
    config, model = replace(at_rest.config, **settings), at_rest.model
    image = edited(at_rest.image, change)
    preview = run_alone(MessageStore.check, config, Topics(), image=image).value
    reports: list[Any] = []

    async def look(store: MessageStore) -> None:
        await check_answers(store, model)
        reports.append(store.recovery)

    run = at_rest.start(look, image=image, config=config)
    (report,) = reports
    first, last = model.kept[0].physical, model.kept[-1].physical
    start = first // config.segment_size * config.segment_size if rebuilds else model.written
    assert report.scanned_from == start, report.reason
    lines = " ".join([*preview, *report.findings, report.reason])
    assert reason in lines
    count = sum(one.physical >= start for one in model.kept)
    assert f"{count} records would be dispatched again, from offset {start}" in lines
    assert struct.unpack_from(">6q", run.image.contents(CHECKPOINT))[3:] == (0, last, 0)
    check_directory(run.image, but=("sizes",) if strays else ())
    named = {line.fields["path"] for line in run.log if line.event == "store.stray"}
    assert named == ({f"{ROOT}/{stray}" for stray in STRAYS} if strays else set())
