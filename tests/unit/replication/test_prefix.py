"""Search for the common beginning of two logs that have diverged, over drawn logs."""

from bisect import bisect_right
from random import Random
from typing import Any

import pytest

from rocketbed.replication.api import WholeRecord
from rocketbed.replication.errors import CutRefused, NothingInCommon
from rocketbed.replication.fresh import LogBounds
from rocketbed.replication.prefix import EMPTY_IT, STEP_SIZE, Divergence, PrefixSearch
from rocketbed.replication.watermark import Watermark

QUESTIONS = 12
ADVICE = "look"


class Log:
    """Records of a log by their ends."""

    def __init__(self, random: Random) -> None:
        self.min_offset = random.choice((0, 0, STEP_SIZE))
        self.ends = [self.min_offset]
        for _ in range(random.randrange(9)):
            self.ends.append(self.ends[-1] + random.choice((100, STEP_SIZE - 1, STEP_SIZE)))
        self.written = Watermark(self.ends[-1])

    async def last_record(self, offset: int) -> WholeRecord | None:
        return self.record_below(offset)

    def record_below(self, offset: int) -> WholeRecord | None:
        number = bisect_right(self.ends, offset) - 1
        return WholeRecord(self.ends[number - 1], self.ends[number]) if number > 0 else None


class Model:
    """Next offset to compare from: each question lies lower by twice the step of the last one."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.bounds: LogBounds | None = None
        self.reset()

    def reset(self) -> None:
        self.different_at, self.step, self.unserved = -1, STEP_SIZE, 0

    @property
    def floor(self) -> int:
        return max(self.log.min_offset, self.bounds.first if self.bounds else 0, 1)

    def first_report(self, usual: int) -> int | str:
        bounds, end = self.bounds, self.log.written.value
        if bounds and bounds.first >= end:
            return "begins"
        if bounds and bounds.end < end:
            if bounds.end <= self.log.min_offset:
                return "ends"
            if not -1 < self.different_at <= bounds.end:
                self.different_at = bounds.end
        if self.different_at == -1:
            return usual
        return min(max(usual, self.floor), max(self.floor, self.different_at - self.step))

    def go_below(self, first: int) -> None:
        self.different_at, self.step, self.unserved = first, 2 * self.step, 0

    def not_served(self, first: int) -> None:
        self.unserved += 1
        if self.unserved > 1 and first > self.floor:
            self.go_below(first)

    def judge(self, divergence: Divergence) -> WholeRecord | str | None:
        if self.bounds and self.bounds.is_slave:
            return "slave"
        record = self.log.record_below(divergence.offset)
        begin = divergence.first if divergence.first != 1 else 0
        if record and record.start >= begin:
            return record
        if divergence.first <= self.floor:
            return "nothing"
        self.go_below(divergence.first)
        return None


def first_report(search: PrefixSearch, usual: int) -> tuple[int | str, str]:
    """Return the offset to compare from, or the kind of refusal, and its text."""
    try:
        return search.first_report(usual), ""
    except NothingInCommon as exc:
        return "begins" if "the master's log begins" in str(exc) else "ends", str(exc)


async def judge(
    search: PrefixSearch, divergence: Divergence
) -> tuple[WholeRecord | str | None, str]:
    """Return the common record, or the kind of refusal, and its text."""
    try:
        return await search.judge(divergence), ""
    except NothingInCommon as exc:
        return "nothing", str(exc)
    except CutRefused as exc:
        return "slave", str(exc)


@pytest.mark.parametrize("seed", range(100))
async def test_each_comparison_lies_lower_down_to_the_floor(seed: int) -> None:
    random = Random(seed)
    log: Any = Log(random)
    search, model, end = PrefixSearch(log, log), Model(log), log.written.value
    search.advice = random.choice(("", ADVICE))
    advice = search.advice or EMPTY_IT
    for _ in range(QUESTIONS):
        if random.random() < 0.3:
            first = random.choice((0, 1, STEP_SIZE, end - 1, end))
            last = random.choice((first, log.min_offset, log.min_offset + 1, end - 1, end, end + 9))
            bounds = LogBounds(first, max(first, last), random.random() < 0.3)
            search.bounds = model.bounds = bounds
        floor = model.floor
        assert search.floor == floor
        usual = random.choice((1, floor, end - end % STEP_SIZE, end))
        report, text = first_report(search, usual)
        assert report == model.first_report(usual)
        assert text.endswith({"begins": EMPTY_IT, "ends": advice}.get(str(report), ""))
        first, draw = random.choice((floor, floor + 1, floor + 99, usual, 1, 0)), random.random()
        if draw < 0.4:
            search.not_served(first)
            model.not_served(first)
        elif draw < 0.5:
            search.reset()
            model.reset()
        else:
            offset = random.choice((*log.ends, first, first + 99, end))
            divergence = Divergence(first, offset, "why")
            verdict, text = await judge(search, divergence)
            assert verdict == model.judge(divergence)
            begin = first if first != 1 else 0
            nothing = f"why; from {begin}, "
            assert text.startswith({"slave": "why; ", "nothing": nothing}.get(str(verdict), ""))
            assert text.endswith(advice if verdict == "nothing" else "")
