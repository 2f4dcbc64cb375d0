"""L7: sends without an answer are stored in the calm phase, or a node counted them as refused."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.history import Function, Outcome, Row
from tests.support.run_maker import MS, Ids, Made, RunMaker, found, results, spec_of

SENT = 200
FIRST = 1000
"""Value of the first one."""


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    maker.record.calm_ns = 1

    def rows(_maker: RunMaker, _made: Made, ids: Ids) -> Iterable[Row]:
        for value in range(FIRST, FIRST + SENT):
            times = {"invoked_ns": 200 * MS, "returned_ns": 200 * MS}
            yield ids.row(Function.SEND_ONEWAY, process=1, queue=value % 2, value=value, **times)

    maker.rows.append(rows)
    return maker


def store_all_but(maker: RunMaker, count: int) -> None:
    maker.specs += [spec_of(value) for value in range(FIRST, FIRST + SENT - count)]


@pytest.mark.parametrize(("absent", "is_found"), [(2, False), (3, True)])
def test_one_in_a_hundred_may_be_absent(maker: RunMaker, absent: int, is_found: bool) -> None:
    store_all_but(maker, absent)
    judgement = maker.judge(only=("L7",))
    assert found(judgement) == ({"L7"} if is_found else set())
    assert results(judgement)["L7"].examined >= SENT


@pytest.mark.parametrize(("counted", "is_found"), [(8, False), (7, True)])
def test_what_nodes_counted_as_refused_is_excused(
    maker: RunMaker, counted: int, is_found: bool
) -> None:
    store_all_but(maker, 10)
    maker.event(150 * MS, "b1", "sample", refused=40)  # before: says nothing of these
    maker.event(210 * MS, "b1", "sample", refused=40 + counted)
    assert found(maker.judge(only=("L7",))) == ({"L7"} if is_found else set())


def test_a_count_begins_again_with_a_start(maker: RunMaker) -> None:
    store_all_but(maker, 10)
    maker.event(150 * MS, "b1", "sample", refused=40)
    maker.event(200 * MS, "b1", "start", role="master", id=0)
    maker.event(210 * MS, "b1", "sample", refused=8)
    assert found(maker.judge(only=("L7",))) == set()


def test_a_refusal_that_was_answered_excuses_no_other(maker: RunMaker) -> None:
    store_all_but(maker, 10)
    maker.event(150 * MS, "b1", "sample", refused=0)
    maker.event(210 * MS, "b1", "sample", refused=8)
    maker.sends[-1] = replace(maker.sends[-1], outcome=Outcome.FAIL)
    judgement = maker.judge(only=("L7",))
    texts = results(judgement)["L7"].findings
    assert any("refused 7 of them" in str(text) for text in texts)
