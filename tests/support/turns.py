"""Tests that take a part of what they have, each time another one: `make test` has to be short."""

import os
import time
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def part(everything: Sequence[T], of: int) -> Sequence[T]:
    """One of so many parts: another one each day, or with each number in `ROCKETBED_SEEDS_TURN`.

    `of` is prime: where not every commit is run, all come by unless the distance is a multiple.
    """
    turn = int(os.environ.get("ROCKETBED_SEEDS_TURN") or time.time() // 86_400)
    return everything[turn % of :: of]
