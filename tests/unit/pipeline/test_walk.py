"""The walk by lanes finds what the loop finds, whatever bodies hold."""

import random
import struct

import numpy
import pytest

from rocketbed.pipeline.files.walk import (
    LANE_RECORDS,
    LANES_MIN,
    SAMPLE_SIZE,
    walk,
    walk_one_by_one,
)
from tests.support.logs import Message

SPAN = 200_000
OFFSET = 5 << 30


def log(bodies: list[bytes], offset: int = OFFSET) -> bytearray:
    data = bytearray()
    for number, body in enumerate(bodies):
        data += Message(body=body).encode(offset + len(data), number)
    return data


def padded(data: bytearray) -> bytearray:
    return data + bytes(128)


def same(data: bytearray, stop: int, end: int) -> int:
    expected, following = walk_one_by_one(data, 0, stop, end)
    starts, end_reached = walk(data, 0, stop, end, OFFSET)
    assert numpy.array_equal(starts, expected)
    assert end_reached == following
    return len(starts)


@pytest.mark.parametrize("length", [0, 100, 700, 9000])
def test_lanes_find_what_the_loop_finds(length: int) -> None:
    chance = random.Random(length)
    bodies = [chance.randbytes(chance.randint(0, 2 * length)) for _ in range(SPAN // (length + 99))]
    data = log(bodies)
    end = len(data)
    assert same(padded(data), end, end) == len(bodies)
    for stop in (0, 1, 91, end // 2, end - 1):
        same(padded(data), stop, end)
        same(padded(data), end, stop)


def test_a_chain_planted_in_bodies_is_not_followed() -> None:
    """Every body holds a chain of whole records that name their own places."""
    data = bytearray()
    for number in range(400):
        at = OFFSET + len(data) + 88
        fake = bytearray()
        while len(fake) < 600:
            fake += Message(body=b"x" * (number % 50)).encode(at + len(fake), 0)
        data += Message(body=bytes(fake)).encode(OFFSET + len(data), number)
    assert len(data) > SAMPLE_SIZE + LANES_MIN * LANE_RECORDS * 100
    assert same(padded(data), len(data), len(data)) == 400


@pytest.mark.parametrize("size", [0, -5, 90, 1 << 30, 0x7FFFFFFF])
def test_an_impossible_size_ends_the_walk(size: int) -> None:
    data = log([b"x" * 60] * 3000)
    positions, _ = walk_one_by_one(data, 0, len(data), len(data))
    for number in (0, 1, 1500, 2999):
        harmed = padded(data)
        struct.pack_into(">i", harmed, int(positions[number]), size)
        assert same(harmed, len(data), len(data)) == number


def test_a_long_record_among_short_ones() -> None:
    bodies = [b"x" * 50] * 1500 + [b"y" * 60_000] + [b"x" * 50] * 1500
    data = log(bodies)
    assert same(padded(data), len(data), len(data)) == 3001
