"""Bounds that a master reports include all that it had acknowledged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import Function, Row
from tests.support.run_maker import MS, Ids, RunMaker, Written, results

Change = Callable[[RunMaker], None]
LAST = 11
"""Offset in queue 0 of value 22, which was acknowledged at 225 ms."""
ASKED_MS = 800


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")


def answer(run: RunMaker, maximum: int, *, at_ms: int = ASKED_MS, slave: bool = False) -> None:
    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [
            ids.row(
                Function.BOUNDS,
                process=6,
                queue=0,
                value=maximum,
                operation=-1,
                node=ids.b2 if slave else ids.b1,
                invoked_ns=at_ms * MS,
                returned_ns=at_ms * MS,
            )
        ]

    run.rows.append(rows)


def all_of_it(run: RunMaker) -> None:
    answer(run, LAST + 1)


def one_too_low(run: RunMaker) -> None:
    answer(run, LAST)


def before_it_was_acknowledged(run: RunMaker) -> None:
    answer(run, LAST, at_ms=724)


def by_a_slave(run: RunMaker) -> None:
    answer(run, LAST, slave=True)


def on_processes(run: RunMaker) -> None:
    one_too_low(run)
    run.record.backend = "process"


def by_a_full_disk(run: RunMaker) -> None:
    one_too_low(run)
    run.strike(230 * MS, "b1", "disk", targets=["b1"])


def by_a_disk_before_that(run: RunMaker) -> None:
    one_too_low(run)
    run.strike(100 * MS, "b1", "disk", targets=["b1"])
    run.strike(150 * MS, "b1", "heal", targets=["b1"], step="disk b1")


def lost_since(run: RunMaker) -> None:
    one_too_low(run)
    run.strike(226 * MS, "b1", "powercut", written=10_000, durable=5_000)
    run.event(227 * MS, "b1", "recovered", end=5_000)


def by_one_of_two_masters(run: RunMaker) -> None:
    one_too_low(run)
    run.strike(100 * MS, "b2", "double", targets=["b2"])


CASES: list[tuple[Change, tuple[int, int]]] = [
    (all_of_it, (0, 0)),
    (one_too_low, (1, 0)),
    (before_it_was_acknowledged, (0, 0)),
    (by_a_slave, (0, 0)),
    (on_processes, (0, 0)),
    (by_a_full_disk, (0, 1)),
    (by_a_disk_before_that, (1, 0)),
    (lost_since, (0, 0)),
    (by_one_of_two_masters, (0, 0)),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_acknowledged_messages_are_before_the_end(
    run: RunMaker, change: Change, expected: tuple[int, int]
) -> None:
    change(run)
    result = results(run.judge(only=["bound-error"]))["bound-error"]
    assert (result.found, result.allowed_found) == expected, result.findings
