"""`make test` has to be short: of what takes long it takes a part, each time another one.

    pytest --by-turns            # of the tests in tests/long.txt a third; all others
    pytest --junitxml=times.xml && python -m tests.support.turns times.xml > tests/long.txt

The turn is the number of commits in `.ci/run`, else that of the day; `ROCKETBED_SEEDS_TURN` is any.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar
from xml.etree import ElementTree

import pytest

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
LONG: Final = ROOT / "tests/long.txt"
"""Tests that took long, by their times: the seconds and the name, a line each."""
LONG_S: Final = 2.0
TURNS: Final = 3
TURN: Final = "ROCKETBED_SEEDS_TURN"
TAKES_PARTS: Final = "from tests.support.turns import part"
"""In a file whose tests take a part by themselves."""


def part(everything: Sequence[T], of: int) -> Sequence[T]:
    """One of so many parts.

    `of` is prime: where not every commit is run, all come by unless the distance is a multiple.
    """
    turn = int(os.environ.get(TURN) or time.time() // 86_400)
    return everything[turn % of :: of]


def long_tests() -> list[str]:
    """The names of tests that take long, the longest first: any third takes a third of the time."""
    lines = LONG.read_text(encoding="utf-8").splitlines()
    return [line.split(maxsplit=1)[1] for line in lines]


def slowest(report: Path) -> list[str]:
    """The lines of `LONG`, from pytest's report in XML."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        path = f"{case.attrib['classname'].replace('.', '/')}.py"
        seconds = float(case.attrib["time"])
        if seconds >= LONG_S and TAKES_PARTS not in (ROOT / path).read_text(encoding="utf-8"):
            found.append((seconds, f"{path}::{case.attrib['name']}"))
    return [f"{seconds:.0f} {name}" for seconds, name in sorted(found, reverse=True)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option `--by-turns`."""
    parser.addoption("--by-turns", action="store_true", help="of tests/long.txt a third only")


def pytest_configure(config: pytest.Config) -> None:
    """All workers take the same turn, also over midnight."""
    os.environ.setdefault(TURN, str(int(time.time() // 86_400)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out."""
    if terminalreporter.config.getoption("by_turns"):
        names = long_tests()
        count = len(part(names, TURNS))
        terminalreporter.write_line(
            f"turn {os.environ[TURN]}: {count} of {len(names)} long tests; all: make test-all"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is another turn's."""
    if not config.getoption("by_turns"):
        return
    names = long_tests()
    others = set(names) - set(part(names, TURNS))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
    items[:] = [item for item in items if item.nodeid not in others]


if __name__ == "__main__":
    print("\n".join(slowest(Path(sys.argv[1]))))
