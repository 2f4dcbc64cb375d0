"""Where a slave whose log has parted asks its master from, step by step, over all small logs."""

from random import Random
from typing import Any, Final

from rocketbed.replication.api import WholeRecord
from rocketbed.replication.errors import CutRefused, NothingInCommon
from rocketbed.replication.fresh import LogBounds
from rocketbed.replication.prefix import EMPTY_IT, STEP_SIZE, Divergence, PrefixSearch
from rocketbed.replication.watermark import Watermark

SEARCHES: Final = 100
QUESTIONS: Final = 12
ADVICE: Final = "look"


class _Log:
    """A log of records, of which only the places count."""

    def __init__(self, random: Random) -> None:
        sizes = [random.choice((100, STEP_SIZE - 1, STEP_SIZE)) for _ in range(random.randrange(9))]
        self.min_offset = random.choice((0, 0, STEP_SIZE))
        self.ends = [self.min_offset]
        for size in sizes:
            self.ends.append(self.ends[-1] + size)
        self.written = Watermark(self.ends[-1])
        self.searched = list[int]()

    async def last_record(self, offset: int) -> WholeRecord | None:
        self.searched.append(offset)
        fits = [at for at in range(1, len(self.ends)) if self.ends[at] <= offset]
        return WholeRecord(self.ends[fits[-1] - 1], self.ends[fits[-1]]) if fits else None


async def ask_searches(random: Random) -> None:
    """Each question lies lower by twice the step of the one before, and not below what both have;
    what is common is believed where a whole record of it was compared."""
    for _ in range(SEARCHES):
        await _searched(random)


async def _searched(random: Random) -> None:
    log: Any = _Log(random)
    search, end = PrefixSearch(log, log), log.written.value
    search.advice = random.choice(("", ADVICE))
    known, step, unserved = -1, STEP_SIZE, 0
    for _ in range(QUESTIONS):
        if random.random() < 0.3:
            first = random.choice((0, 1, STEP_SIZE, end - 1, end))
            last = random.choice((first, log.min_offset, log.min_offset + 1, end - 1, end, end + 9))
            search.bounds = LogBounds(first, max(first, last), random.random() < 0.3)
        bounds = search.bounds
        floor = max(log.min_offset, bounds.first if bounds else 0, 1)
        assert search.floor == floor, f"search: {search.floor} is the lowest, not {floor}"
        usual = random.choice((1, floor, end - end % STEP_SIZE, end))
        want: int | str = usual
        says = search.advice or EMPTY_IT
        if bounds and not bounds.first < end:
            want, says = "begins", EMPTY_IT
        elif bounds and bounds.end < end and not bounds.end > log.min_offset:
            want = "ends"
        else:
            if bounds and bounds.end < end and not -1 < known <= bounds.end:
                known = bounds.end
            if known != -1:
                want = min(max(usual, floor), max(floor, known - step))
        try:
            found: int | str = search.first_report(usual)
        except NothingInCommon as exc:
            found = (
                "ends" if f"log ends at {bounds.end if bounds else 0}," in str(exc) else "begins"
            )
            assert str(exc).endswith(says), f"search: {exc} for {says!r}"
        assert found == want, f"search: {found} is asked, not {want}: {bounds}, {known}, {step}"
        first = random.choice((floor, floor + 1, floor + 99, usual, 1, 0))
        draw = random.random()
        if draw < 0.4:
            search.not_served(first)
            unserved += 1
            if unserved > 1 and first > floor:
                known, step, unserved = first, 2 * step, 0
        elif draw < 0.5:
            search.reset()
            known, step, unserved = -1, STEP_SIZE, 0
        else:
            differs = random.choice((*log.ends, first, first + 99, end))
            if (
                was := await _judged(search, log, Divergence(first, differs, "why"), floor)
            ) == "lower":
                known, step, unserved = first, 2 * step, 0
            assert was != "" or bounds is not None, "search: refused by nobody"


async def _judged(search: PrefixSearch, log: Any, parted: Divergence, floor: int) -> str:
    log.searched.clear()
    begin = parted.first if parted.first != 1 else 0
    fits = [at for at in range(1, len(log.ends)) if log.ends[at] <= parted.offset]
    want: object = "lower" if parted.first > floor else "nothing"
    if fits and log.ends[fits[-1] - 1] >= begin:
        want = WholeRecord(log.ends[fits[-1] - 1], log.ends[fits[-1]])
    if search.bounds and search.bounds.is_slave:
        want = "slave"
    found: object = None
    try:
        found = await search.judge(parted) or "lower"
    except NothingInCommon as exc:
        found = "nothing"
        said = str(exc).startswith("why; ") and str(exc).endswith(search.advice or EMPTY_IT)
        assert said and f"from {begin}, " in str(exc), f"search: {exc!s}"
    except CutRefused as exc:
        found = "slave"
        assert str(exc).startswith("why; "), f"search: {exc!s}"
    assert found == want, f"search: {parted} is judged {found}, not {want}, from {floor}"
    return found if isinstance(found, str) else "found"
