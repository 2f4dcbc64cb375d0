"""Starts of a directory that RocketMQ had: if in doubt, queues and index are rebuilt."""

import struct

import pytest

from rocketbed.chaos.backends.sim.disk import SimDisk
from tests.model.at_rest import BATCH_UNIT, FLUSHED, MARK, UNIT, Change, edit_file
from tests.model.model import Kept
from tests.model.store import BATCHES
from tests.support.sim.stopped_store import (
    ABORT,
    CHECKPOINT,
    check_start,
    checkpoint,
    every,
    remove,
    stopped_twice,
    write,
)


def last_ms() -> int:
    return stopped_twice()[0].model.kept[-1].stored_ms


def rocketmq(physic_ms: int | None = None, logics_ms: int | None = None) -> Change:
    """Make a directory as RocketMQ closes it: its own checkpoint, and none of our files."""

    def change(disk: SimDisk) -> None:
        times = [last_ms() if time is None else time for time in (physic_ms, logics_ms)]
        every(remove(MARK), remove(FLUSHED), write(CHECKPOINT, checkpoint(*times)))(disk)

    return change


def unit_of(record: Kept) -> tuple[str, int, int]:
    """Return file, offset and size of a record's unit."""
    image, width = stopped_twice()[0].image, BATCH_UNIT if record.put.topic in BATCHES else UNIT
    for path in image.paths():
        if f"consumequeue/{record.put.topic}/{record.put.queue}/" in path:
            data = image.contents(path)
            for at in range(0, len(data), width):
                if struct.unpack_from(">qi", data, at) == (record.physical, record.size):
                    return path, at, width
    raise AssertionError(record)


def without_last_unit(disk: SimDisk) -> None:
    path, at, width = unit_of(stopped_twice()[0].model.kept[-1])
    data = disk.contents(path)
    disk.replace_contents(path, data[:at] + bytes(width) + data[at + width :])


def flip_unit(offset: int, bits: int) -> Change:
    """Change a byte of the last unit of some plain queue."""

    def change(disk: SimDisk) -> None:
        queues = stopped_twice()[0].model.queues()
        records = next(
            records for place, records in sorted(queues.items()) if place[0] not in BATCHES
        )
        path, at, _ = unit_of(records[-1])

        def edit(data: bytearray) -> None:
            data[at + offset] ^= bits

        edit_file(path, edit)(disk)

    return change


def copy_back(path: str, size: int | None = None) -> Change:
    return lambda disk: disk.replace_contents(path, stopped_twice()[0].image.contents(path)[:size])


def shift(physic_ms: int, logics_ms: int) -> Change:
    """Shift the times of RocketMQ's checkpoint from those of the last record."""
    return lambda disk: rocketmq(last_ms() + physic_ms, last_ms() + logics_ms)(disk)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(rocketmq(0, 0), id="no time"),
        pytest.param(shift(0, -1), id="earlier time of queues"),
        pytest.param(shift(1, 1), id="times of no record"),
        pytest.param(every(rocketmq(), without_last_unit), id="no last unit"),
        pytest.param(every(rocketmq(), flip_unit(11, 1)), id="unit of another size"),
        pytest.param(every(rocketmq(), flip_unit(7, 8)), id="unit of no record"),
        pytest.param(every(rocketmq(), write(ABORT, b"77\n")), id="killed"),
        pytest.param(every(rocketmq(), copy_back(FLUSHED)), id="our flushed offset"),
        pytest.param(every(rocketmq(), copy_back(MARK, 20)), id="half of our mark"),
    ],
)
def test_a_doubtful_directory_of_rocketmq_is_rebuilt(change: Change) -> None:
    check_start(change, rebuilds=True)


def test_a_directory_that_rocketmq_closed_is_taken_over() -> None:
    check_start(rocketmq(), rebuilds=False, reason="RocketMQ closed it")
    slots = stopped_twice()[0].config.index_slots + 1
    check_start(rocketmq(), rebuilds=True, index_slots=slots)
