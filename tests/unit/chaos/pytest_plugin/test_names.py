"""Names of what tests with a cluster leave behind, and fixtures that other plugins wrapped."""

from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from rocketbed.chaos.pytest_plugin.collection import NAME_MAX, file_name
from rocketbed.chaos.pytest_plugin.plugin import OTHERS, _unwrapped


def name_of(node: str) -> str:
    item: Any = SimpleNamespace(nodeid=node)
    return file_name(item)


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("test_a.py::test_one[sim-7]", "test_a-test_one-sim-7"),
        (
            "tests/unit/test_a.py::TestX::test_one[a/b-sim-7]",
            "tests.unit.test_a-TestX-test_one-a-b-sim-7",
        ),
        ("../x/test_a.py::test_one", "x.test_a-test_one"),
    ],
)
def test_name_has_plain_characters_and_its_owner(node: str, name: str) -> None:
    assert name_of(node) == name


def test_long_name_is_cut_and_stays_unique() -> None:
    first, second = (name_of(f"test_a.py::test_one[{'x' * 400}{end}]") for end in "ab")
    assert len(first) == len(second) <= NAME_MAX + 9
    assert first != second


def test_fixture_wrapped_by_pytest_asyncio_is_unwrapped() -> None:
    def inner() -> None:
        raise AssertionError

    def wrapper_of(home: str) -> Any:
        wrapper: Any = FunctionType(inner.__code__, {"__name__": home})
        wrapper.__wrapped__ = inner
        return wrapper

    assert _unwrapped(wrapper_of(OTHERS[0])) is inner
    foreign = wrapper_of("somebody")
    assert _unwrapped(foreign) is foreign
    assert _unwrapped(inner) is inner
