"""Slices of the suite: what turns cover, what a slice leaves out, and when it is not green."""

from itertools import pairwise
from math import gcd
from pathlib import Path

import pytest

from tests.support.slices import order_of, places, turns_of_all
from tests.support.suites import Ran, run_suite

ROOT = Path(__file__).parents[2]
PLUGIN = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})
pytest_plugins = ["tests.support.slices"]
"""
TEST = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"
FILES = {f"test_{letter}": TEST for letter in "abcdefg"}
NAMES = [f"{name}.py" for name in FILES]


def run(place: Path, *options: str, **files: str) -> Ran:
    """A slice of no seconds: the minimum."""
    return run_suite(
        place, "-v", "--slice-seconds", "0", *options, conftest=PLUGIN, **{**FILES, **files}
    )


def names_of(count: int) -> list[str]:
    return [f"tests/test_{number}.py" for number in range(count)]


@pytest.mark.parametrize(("count", "minimum"), [(1, 1), (2, 5), (13, 4), (44, 8), (45, 8), (47, 8)])
@pytest.mark.parametrize("first", [0, 1, 535])
def test_turns_that_follow_each_other_cover_all(count: int, minimum: int, first: int) -> None:
    names, turns = names_of(count), turns_of_all(count, minimum)
    seen = {
        name
        for turn in range(first, first + turns)
        for name in order_of(names, turn, minimum)[:minimum]
    }
    assert seen == set(names)


@pytest.mark.parametrize("distance", range(1, 31))
def test_turns_of_any_distance_come_by_everything(distance: int) -> None:
    names = names_of(44)
    assert places(44) == 47
    seen = {name for turn in range(47) for name in order_of(names, turn * distance, 8)[:8]}
    assert seen == set(names)


def test_the_places_are_prime_and_no_more_than_it_takes() -> None:
    assert [places(count) for count in (0, 1, 2, 3, 4, 8, 13, 14, 44)] == [
        2, 2, 2, 3, 5, 11, 13, 17, 47,
    ]  # fmt: skip
    assert all(gcd(places(count), minimum) == 1 for count in range(9, 60) for minimum in (4, 8))


def test_neighbours_stand_apart() -> None:
    names = names_of(44)
    order = order_of(names, 0, 8)
    gaps = [abs(order.index(one) - order.index(two)) for one, two in pairwise(sorted(names))]
    assert min(gaps) > 8


def test_a_slice_runs_its_minimum_and_names_the_rest(tmp_path: Path) -> None:
    ran = run(tmp_path, "--slice-turn", "3", "--slice-minimum", "2")
    assert ran.code == 0, ran.text
    assert ran.counts() == {"passed": 4}
    order = order_of(NAMES, 3, 2)
    begun = [line.split("::")[0] for line in ran.text.splitlines() if "::test_one PASSED" in line]
    assert begun == order[:2]
    left = [line.split()[-1] for line in ran.text.splitlines() if line.startswith(" left out")]
    assert left == order[2:]
    assert "2 of 7 files begun within 0 s or the first 2; 5 left out, with 10 tests" in ran.text
    assert "all are covered by 4 turns" in ran.text


def test_a_slice_with_time_runs_all(tmp_path: Path) -> None:
    ran = run(tmp_path, "--slice-seconds", "100")
    assert (ran.code, ran.counts()) == (0, {"passed": 14}), ran.text
    assert "left out  " not in ran.text


def test_what_a_begun_file_shares_ends_before_the_session_does(tmp_path: Path) -> None:
    shared = """
@pytest.fixture(scope="module", autouse=True)
def shared():
    yield
    print("ended of its own")

def test_one():
    pass
"""
    ran = run(tmp_path, "-s", "test_only.py", "test_a.py", test_only=shared, test_a=shared)
    assert (ran.code, ran.counts()) == (0, {"passed": 1}), ran.text
    assert ran.text.count("ended of its own") == 1


def test_fewer_files_than_the_minimum_are_red(tmp_path: Path) -> None:
    stops = "def test_one():\n    pytest.exit('enough', returncode=0)\n"
    everywhere = dict.fromkeys(FILES, stops)
    ran = run(tmp_path, "--slice-minimum", "2", **everywhere)
    assert ran.code == 1, ran.text
    assert "FAILED: fewer files than 2" in ran.text


def test_a_failure_is_one_and_wrong_options_are_told(tmp_path: Path) -> None:
    fails = dict.fromkeys(FILES, "def test_one():\n    assert False\n")
    assert run(tmp_path, **fails).code == 1
    refused = run(tmp_path, "--slice-minimum", "0")
    assert (refused.code, "--slice-minimum from 1 on" in refused.text) == (4, True), refused.text
    assert "one process, not -n" in run(tmp_path, "-n", "2").text


def test_without_seconds_nothing_changes(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "-v", "--slice-turn", "3", conftest=PLUGIN, **FILES)
    assert ran.counts() == {"passed": 14}
    assert "slice: turn" not in ran.text


def test_a_slice_in_which_nothing_ran_is_not_green(tmp_path: Path) -> None:
    skipped = dict.fromkeys(FILES, "import pytest\n\npytest.skip('no', allow_module_level=True)\n")
    ran = run_suite(tmp_path, "--slice-seconds", "0", conftest=PLUGIN, **skipped)
    assert ran.code != 0
    broken = run_suite(
        tmp_path, "--slice-seconds", "0", conftest=PLUGIN, **{**FILES, "test_a": "import nowhere\n"}
    )
    assert broken.code == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in broken.text
