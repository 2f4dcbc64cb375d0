"""A slice of the suite by time, for where all of it would take too long.

    pytest -p tests.support.slices -m slow --slice-seconds 900 --slice-minimum 8 \
        --slice-turn "$(git rev-list --count HEAD)"

The test files stand on a circle, neighbours in the tree far apart, since the long ones are in few
folders. A run begins where its turn says and begins a further file while its seconds last, the
first `minimum` of them in any case; what it has begun it runs to its end. The others are named at
the end. Green is a run whose tests passed and that began its minimum.

Turn t begins `minimum` places after turn t - 1. So turns that follow each other leave nothing
between them, and `turns_of_all` of them cover the circle however slow the machine is. But not every
commit has a run of its own. The number of places is prime (some are empty), so that with any other
distance between the turns, too, every place is come by, unless it is a multiple of that number. On
a circle of 48, runs after every sixth commit would see the same files for ever.

A slice is one process: where xdist deals out the files, none of them knows what the others began.
"""

import time
from collections.abc import Iterable
from typing import Final

import pytest

GOLDEN: Final = 0.618


def places(count: int) -> int:
    """The smallest prime number of places that has room for so many files."""
    number = max(2, count)
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


def order_of(names: Iterable[str], turn: int, minimum: int) -> list[str]:
    """All files, from the place on at which a turn begins.

    From each file to the next in the tree it is the golden section of the circle.
    """
    known = sorted(set(names))
    size = places(len(known))
    step = round(size * GOLDEN)
    first = turn * minimum
    by_distance = {(number * step - first) % size: name for number, name in enumerate(known)}
    return [by_distance[distance] for distance in sorted(by_distance)]


def turns_of_all(count: int, minimum: int) -> int:
    """How many turns that follow each other cover all files, if none begins more than it must."""
    return -(-places(count) // minimum)


class Slice:
    """One session of pytest that is a slice."""

    def __init__(self, turn: int, seconds: float, minimum: int) -> None:
        self.turn = turn
        self.seconds = seconds
        self.minimum = minimum
        self.files: list[str] = []
        """All that were selected, in the order of this turn."""
        self.begun: dict[str, float] = {}
        """Files that were begun, and when."""
        self.is_over = False
        self.tests_left = 0
        self.passed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order the files; within a file all stays as it is."""
        self.files = order_of(map(file_of, items), self.turn, self.minimum)
        rank = {name: number for number, name in enumerate(self.files)}
        items.sort(key=lambda item: rank[file_of(item)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Run a test, or pass over it if its file is not begun any more."""
        name = file_of(item)
        if name not in self.begun:
            self.is_over = self.is_over or not self.may_begin()
            if self.is_over:
                self.tests_left += 1
                return True
            self.begun[name] = time.monotonic()
        return None

    def may_begin(self) -> bool:
        """Whether there is time for one more file."""
        if len(self.begun) < self.minimum:
            return True
        return time.monotonic() < next(iter(self.begun.values())) + self.seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what ran: a slice of skipped tests shows nothing."""
        self.passed += report.when == "call" and report.passed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Too few files are a failure, though each of their tests passed."""
        if self.is_too_little() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def is_too_little(self) -> bool:
        """Whether less was begun than the minimum, or than there is, or nothing was run."""
        return len(self.begun) < min(self.minimum, len(self.files)) or not self.passed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what ran and name what did not."""
        write = terminalreporter.write_line
        terminalreporter.section(f"slice: turn {self.turn}")
        ends = [*list(self.begun.values())[1:], time.monotonic()][: len(self.begun)]
        for (name, began_s), end_s in zip(self.begun.items(), ends, strict=True):
            write(f"{end_s - began_s:7.1f} s  {name}")
        left = [name for name in self.files if name not in self.begun]
        for name in left:
            write(f" left out  {name}")
        write(
            f"{len(self.begun)} of {len(self.files)} files begun within {self.seconds:g} s or the"
            f" first {self.minimum}; {len(left)} left out, with {self.tests_left} tests;"
            f" all are covered by {turns_of_all(len(self.files), self.minimum)} turns"
        )
        if self.is_too_little():
            write(f"FAILED: fewer files than {self.minimum}, or no test that passed", red=True)


def file_of(item: pytest.Item) -> str:
    """The file of a test, as pytest names it."""
    return item.nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of a slice."""
    group = parser.getgroup("slices", "a slice of the suite by time")
    group.addoption("--slice-seconds", type=float, help="begin new test files for so long")
    group.addoption("--slice-turn", type=int, default=0, help="where on the circle of files")
    group.addoption("--slice-minimum", type=int, default=1, help="files to begin in any case")


def pytest_configure(config: pytest.Config) -> None:
    """Slice where it was asked for."""
    seconds = config.getoption("slice_seconds")
    turn, minimum = config.getoption("slice_turn"), config.getoption("slice_minimum")
    if seconds is None:
        return
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--slice-seconds: one process, not -n")
    if min(turn, seconds, minimum - 1) < 0:
        raise pytest.UsageError("a slice wants --slice-minimum from 1 on, the others from 0 on")
    if not config.option.collectonly:
        config.pluginmanager.register(Slice(turn, seconds, minimum), "slice")
