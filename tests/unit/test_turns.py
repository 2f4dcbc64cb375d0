"""What `make test` leaves out of the tests that take long."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import turns


def test_each_long_test_is_there() -> None:
    for name in turns.long_tests():
        path, _, function = name.partition("::")
        text = (turns.ROOT / path).read_text(encoding="utf-8")
        assert f"def {function.partition('[')[0]}(" in text, f"{name} of {turns.LONG} is gone"


def taken(names: list[str], *, by_turns: bool = True) -> list[str]:
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(getoption=lambda _: by_turns, hook=hook)
    turns.pytest_collection_modifyitems(cast(pytest.Config, config), items)
    return [item.nodeid for item in items]


def test_turns_that_follow_each_other_run_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["tests/short.py::test_it", *reversed(turns.long_tests())]
    runs = []
    for turn in (7, 8, 9):
        monkeypatch.setenv(turns.TURN, str(turn))
        runs.append(taken(names))
        assert runs[-1][0] == names[0]
    ran = [name for run in runs for name in run[1:]]
    assert sorted(ran) == sorted(names[1:])
    assert taken(names, by_turns=False) == names


def test_what_took_long_is_listed_but_for_what_takes_parts_by_itself(tmp_path: Path) -> None:
    report = tmp_path / "times.xml"
    report.write_text(
        '<testsuite><testcase classname="tests.sim.test_swarm" name="test_a" time="99.0" />'
        '<testcase classname="tests.unit.test_turns" name="test_b[x y]" time="2.0" />'
        '<testcase classname="tests.unit.test_turns" name="test_c" time="1.9" />'
        '<testcase classname="tests.unit.test_slices" name="test_d" time="30.4" /></testsuite>',
        encoding="utf-8",
    )
    wanted = ["30 tests/unit/test_slices.py::test_d", "2 tests/unit/test_turns.py::test_b[x y]"]
    assert turns.slowest(report) == wanted
