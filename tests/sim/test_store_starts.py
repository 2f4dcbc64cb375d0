"""Starts of a directory that was changed while it was closed, by an operator or a crash.

Each compares every answer with the model of the store, and whether queues and index were rebuilt.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.node.store.errors import BadStoreDirectory
from rocketbed.node.store.store import MessageStore
from tests.model.alone import run_alone
from tests.model.at_rest import (
    FLUSHED,
    MARK,
    UNFLUSHED,
    Change,
    check_answers,
    edited,
    filled,
    serve,
)
from tests.model.lives import check_directory, raise_wrong
from tests.model.model import Kept, Model
from tests.model.store import ROOT, Life
from tests.support.sim.stopped_store import (
    ABORT,
    CHECKPOINT,
    COUNT,
    STRAYS,
    check_start,
    checkpoint,
    every,
    remove,
    stopped_twice,
    write,
)

SECTOR: Final = 512


def older(disk: SimDisk) -> None:
    """Bring back the files that say what is synced, as they were at the former stop."""
    _, image = stopped_twice()
    for path in (MARK, FLUSHED, CHECKPOINT):
        disk.replace_contents(path, image.contents(path))


def half_mark(disk: SimDisk) -> None:
    data = disk.contents(MARK)
    disk.replace_contents(MARK, data[: len(data) // 2])


def no_index_file(disk: SimDisk) -> None:
    disk.remove_name(max(path for path in disk.image().paths() if "/index/" in path))


@pytest.mark.parametrize(
    ("change", "rebuilds", "reason"),
    [
        pytest.param(write(ABORT, b""), False, "", id="empty abort file"),
        pytest.param(
            every(write(CHECKPOINT, checkpoint(5, 5)), write(ABORT, b"")),
            True, "another broker's", id="empty abort file and another checkpoint",
        ),
        pytest.param(write(ABORT, b"1\n"), True, "another broker's", id="abort file"),
        pytest.param(
            write(CHECKPOINT, checkpoint(5, 5)), True, "no clean stop of rocketbed",
            id="another checkpoint",
        ),
        pytest.param(older, True, "an old copy", id="older mark"),
        pytest.param(half_mark, True, "no durable mark", id="half a mark"),
        pytest.param(remove(FLUSHED), False, "", id="no flushed offset"),
        pytest.param(no_index_file, True, "an index file was removed", id="no index file"),
    ],
)  # fmt: skip
def test_a_changed_directory_is_rebuilt_where_needed(
    change: Change, rebuilds: bool, reason: str
) -> None:
    check_start(change, rebuilds=rebuilds, reason=reason)


def test_strays_are_named_and_left() -> None:
    def add(disk: SimDisk) -> None:
        for stray in STRAYS:
            if stray.endswith("notes"):
                disk.replace_contents(f"{ROOT}/{stray}", b"mine")
            else:
                disk.makedirs(f"{ROOT}/{stray}")
        disk.replace_contents(f"{ROOT}/commitlog/notes", b"mine")

    check_start(add, rebuilds=False, reason="is no segment", strays=True)


# --- settings of one start


def look_at(model: Model, check: Callable[[Any], None]) -> Any:
    """Return a look that compares all answers, and checks the report of the start."""

    async def look(store: MessageStore) -> None:
        await check_answers(store, model)
        check(store.recovery)

    return look


def test_an_index_that_was_switched_off_is_rebuilt() -> None:
    at_rest, _ = stopped_twice()
    model = at_rest.model.copy()
    life = Life(model, Random("index off"), 0, power=False)

    async def put(store: MessageStore) -> None:
        for topic in ("A", "B"):
            life.put_in(store, topic, 0)

    off = replace(at_rest.config, index_enabled=False)
    image = at_rest.start(put, config=off).image
    image = run_alone(partial(serve, stops=True), off, image=image).image
    look = look_at(model, lambda report: _is(report.took_over, True))
    check_directory(at_rest.start(look, image=image).image)


def _is(actual: object, expected: object) -> None:
    assert actual == expected


def test_a_deletion_that_an_operator_reports_is_made_once() -> None:
    at_rest, _ = stopped_twice()
    model = at_rest.model.copy()
    ordered = replace(at_rest.config, topics_deleted=(("D", model.written),))
    model.deleting = "D"
    model.was_deleted()
    image = at_rest.image
    for took_over in (True, False):
        look = look_at(model, lambda report: _is(report.took_over, took_over))  # noqa: B023
        image = at_rest.start(look, image=image, config=ordered).image


def test_a_log_without_its_first_file_starts_by_order() -> None:
    at_rest, _ = stopped_twice()
    size, model = at_rest.config.segment_size, at_rest.model.copy()
    first = model.kept[0].physical // size * size
    low = first + size
    model.kept = [record for record in model.kept if record.physical >= low]
    image = edited(at_rest.image, remove(at_rest.place(first)[0]))
    text = f"at offset {low}, but retention had kept everything from {first}: {size} bytes"
    for order in (-1, low + size):
        with pytest.raises(BadStoreDirectory, match=text):
            run_alone(serve, replace(at_rest.config, accept_start_at=order), image=image)
    for order in (low, -1):
        is_used = order == low
        reason = f"rbAcceptStart={low} is set"
        look = look_at(model, lambda r: _is(reason in " ".join(r.findings), is_used))  # noqa: B023
        config = replace(at_rest.config, accept_start_at=order)
        image = at_rest.start(look, image=image, config=config).image


# --- after a power cut


def test_a_record_with_a_lost_sector_is_cut_off() -> None:
    """No checksum covers its properties; zeros that a producer wrote there are no lost sector."""
    at_rest = filled("torn", COUNT, own="own\x01\0\x02", is_flushed=False, **UNFLUSHED)
    model, config = at_rest.model, at_rest.config

    def start(image: DiskImage) -> Model:
        copy = model.copy()
        copy.flushed = 0
        life = Life(copy, Random("torn"), 0, power=True)
        run_alone(partial(life.main, stops=True), config, image=image, boots=2)
        raise_wrong(life)
        return copy

    assert start(at_rest.image).written == model.written
    crossing = [record for record in model.kept if crosses_sector(record)]
    record = crossing[len(crossing) // 2]
    path, at = at_rest.place(record.physical)
    sector = (at + record.size - 1) // SECTOR * SECTOR

    def lose(disk: SimDisk) -> None:
        data = disk.contents(path)
        disk.replace_contents(path, data[:sector] + bytes(len(data) - sector))
        for later in disk.image().paths():
            if later.startswith(f"{ROOT}/commitlog/") and later > path:
                disk.remove_name(later)

    assert start(edited(at_rest.image, lose)).written <= record.physical


def crosses_sector(record: Kept) -> bool:
    """True if a sector begins within the record's properties."""
    sector = (record.end - 1) // SECTOR * SECTOR
    return record.end - len(record.put.properties) < sector < record.end - 1


def test_files_after_a_lost_one_are_kept_aside() -> None:
    """Those that hold messages are; an empty one is not."""
    at_rest = filled("missing", COUNT, is_flushed=False, **UNFLUSHED, segment_size=2048)
    size, model = at_rest.config.segment_size, at_rest.model
    files = sorted({record.physical // size * size for record in model.kept})
    lost = files[len(files) // 2]
    bad = edited(at_rest.image, every(
        remove(at_rest.place(lost)[0]), write(at_rest.place(files[-1] + size)[0], bytes(size))
    ))  # fmt: skip
    model.kept = [record for record in model.kept if record.physical < lost]
    model.written = lost  # with the filler before it
    look = look_at(
        model, lambda r: _is("does not reach the messages" in " ".join(r.findings), True)
    )
    image = at_rest.start(look, image=bad, boots=2).image
    saved = {image.contents(path) for path in image.paths() if "/rocketbed.cut/" in path}
    assert saved == {bad.contents(at_rest.place(at)[0]) for at in files if at > lost}
