"""Consumer groups, queries by key, bounds of queues, searches by time: found, and innocent."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rocketbed.chaos.history import Function, Row
from tests.support.plain_passes import form
from tests.support.run_maker import COUNT, GROUP, MS, SECOND, Ids, Made, RunMaker, found, results
from tests.support.stores import STORE_MS

Change = Callable[[RunMaker], None]


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")


def add(run: RunMaker, function: Function, time_ns: int, **fields: int) -> None:
    run.rows.append(partial(_row, function, time_ns, fields))


def _row(
    function: Function,
    time_ns: int,
    fields: dict[str, int],
    _run: RunMaker,
    _made: Made,
    ids: Ids,
) -> list[Row]:
    values = {"invoked_ns": time_ns, "returned_ns": time_ns, "process": 6, **fields}
    return [ids.row(function, **values)]


def deliver(run: RunMaker, value: int, offset: int, time_ns: int, *, process: int) -> None:
    def rows(_run: RunMaker, _made: Made, ids: Ids) -> list[Row]:
        return [ids.deliver(value, value % 2, offset, time_ns, process=process)]

    run.rows.append(rows)


def commit(run: RunMaker, queue: int, offset: int, time_ns: int) -> None:
    def rows(_run: RunMaker, _made: Made, ids: Ids) -> list[Row]:
        return [ids.commit(queue, offset, time_ns)]

    run.rows.append(rows)


def offsets_on_disk(run: RunMaker, committed: int) -> None:
    table = {"offsetTable": {"Trial@group-1": {"0": committed}}}

    def write(path: Path) -> None:
        directory = path / "stores" / "b1" / "config"
        directory.mkdir()
        (directory / "consumerOffset.json").write_text(json.dumps(table))

    run.after.append(write)


# --- groups


def skipped(run: RunMaker) -> None:
    run.delivered = [value for value in range(COUNT) if value != 10]


def not_passed_yet(run: RunMaker) -> None:
    skipped(run)
    run.committed = {0: 5}


def reset_beyond(run: RunMaker) -> None:
    skipped(run)
    add(run, Function.RESET_OFFSET, SECOND, queue=0, operation=GROUP, queue_offset=6)


def begun_too_early(run: RunMaker) -> None:
    commit(run, 0, 6, 60 * SECOND)
    deliver(run, 4, 2, 70 * SECOND, process=9)


def not_persisted_yet(run: RunMaker) -> None:
    commit(run, 0, 6, 76 * SECOND)
    deliver(run, 4, 2, 79 * SECOND, process=9)


def killed_before_it_was_persisted(run: RunMaker) -> None:
    commit(run, 0, 6, 56 * SECOND)
    run.event(60 * SECOND, "b1", "exit", cause="kill")
    run.event(75 * SECOND, "b1", "start", id=0)
    deliver(run, 4, 2, 79 * SECOND, process=9)


def killed_long_after_it_was_persisted(run: RunMaker) -> None:
    commit(run, 0, 6, 50 * SECOND)
    run.event(60 * SECOND, "b1", "exit", cause="kill")
    run.event(75 * SECOND, "b1", "start", id=0)
    deliver(run, 4, 2, 79 * SECOND, process=9)


def slave_killed_before_it_was_persisted(run: RunMaker) -> None:
    commit(run, 0, 6, 56 * SECOND)
    run.event(60 * SECOND, "b2", "exit", cause="kill")
    deliver(run, 4, 2, 79 * SECOND, process=9)


def stopped_after_the_commit(run: RunMaker) -> None:
    commit(run, 0, 6, 56 * SECOND)
    run.event(60 * SECOND, "b1", "exit", cause="stop")
    run.event(61 * SECOND, "b1", "start", id=0)
    deliver(run, 4, 2, 79 * SECOND, process=9)


def committed_beyond(run: RunMaker) -> None:
    commit(run, 0, COUNT // 2 + 1, 85 * SECOND)


def stored_beyond(run: RunMaker) -> None:
    offsets_on_disk(run, COUNT // 2 + 1)


def stored_at_the_end(run: RunMaker) -> None:
    offsets_on_disk(run, COUNT // 2)


# --- queries


def query(run: RunMaker, value: int, time_ns: int, offset: int, status: int = 1) -> None:
    add(
        run,
        Function.QUERY_KEY,
        time_ns,
        value=value,
        queue=value % 2,
        queue_offset=offset,
        status=status,
    )


def not_found_in_calm(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, -1, 0)


def not_found_in_storm(run: RunMaker) -> None:
    query(run, 4, 40 * SECOND, -1, 0)


def not_found_at_once(run: RunMaker) -> None:
    query(run, 4, 1 * SECOND, -1, 0)


def another_found(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, 3)


def found_where_it_is(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, 2)


def bounds(run: RunMaker, time_ns: int, maximum: int, minimum: int = 0) -> None:
    add(run, Function.BOUNDS, time_ns, queue=0, value=maximum, operation=minimum)


def bounds_crossed(run: RunMaker) -> None:
    bounds(run, SECOND, 3, 4)


def beyond_the_end(run: RunMaker) -> None:
    bounds(run, SECOND, COUNT // 2 + 1)


def back(run: RunMaker) -> None:
    bounds(run, SECOND, 8)
    bounds(run, 2 * SECOND, 7)


def back_after_a_cut(run: RunMaker) -> None:
    back(run)
    run.strike(1500 * MS, "b1", "powercut", written=10_000, durable=5_000)
    run.event(1600 * MS, "b1", "recovered", end=10_000)


def rising(run: RunMaker) -> None:
    bounds(run, SECOND, 8)
    bounds(run, 2 * SECOND, COUNT // 2, 2)


def search(run: RunMaker, offset: int) -> None:
    """For the time of message 8, which is at offset 4 of queue 0."""
    add(run, Function.SEARCH_TIME, 60 * SECOND, queue=0, value=STORE_MS + 8000, queue_offset=offset)


def too_early_a_message(run: RunMaker) -> None:
    search(run, 2)


def too_late_a_message(run: RunMaker) -> None:
    search(run, 7)


def the_message_of_the_time(run: RunMaker) -> None:
    search(run, 4)


def stored_before_the_one_in_front(run: RunMaker) -> None:
    run.specs[9] = replace(run.specs[9], store_ms=STORE_MS + 7500)
    run.strike(SECOND, "b1", "clock")


def after_a_clock_step(run: RunMaker) -> None:
    search(run, 7)
    run.strike(SECOND, "b1", "clock")


CASES: list[tuple[Change, set[str]]] = [
    (skipped, {"A22"}),
    (not_passed_yet, set()),
    (reset_beyond, set()),
    (begun_too_early, {"A24"}),
    (not_persisted_yet, set()),
    (killed_before_it_was_persisted, set()),
    (killed_long_after_it_was_persisted, {"A24"}),
    (slave_killed_before_it_was_persisted, {"A24"}),
    (stopped_after_the_commit, {"A24"}),
    (committed_beyond, {"A25"}),
    (stored_beyond, {"A25"}),
    (stored_at_the_end, set()),
    (not_found_in_calm, {"A17"}),
    (not_found_in_storm, {"A17w"}),
    (not_found_at_once, set()),
    (another_found, {"A17"}),
    (found_where_it_is, set()),
    (bounds_crossed, {"A18"}),
    (beyond_the_end, {"A18"}),
    (back, {"A18"}),
    (back_after_a_cut, set()),
    (rising, set()),
    (too_early_a_message, {"A19"}),
    (too_late_a_message, {"A19"}),
    (the_message_of_the_time, set()),
    (after_a_clock_step, set()),
    (stored_before_the_one_in_front, {"A19s"}),
]


@pytest.mark.parametrize("plain", [False, True], ids=["numpy", "plain"])
@pytest.mark.parametrize(("change", "wanted"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_finds_just_that(run: RunMaker, change: Change, wanted: set[str], plain: bool) -> None:
    change(run)
    with form(plain=plain):
        judgement = run.judge()
    assert found(judgement) == wanted, [
        (result.id, result.findings) for result in judgement.findings
    ]


def test_warnings_do_not_fail_a_run(run: RunMaker) -> None:
    begun_too_early(run)
    too_late_a_message(run)
    judgement = run.judge()
    assert found(judgement) == {"A19", "A24"}
    assert str(judgement.verdict) == "pass"
    assert judgement.finding_ids == []


def test_redeliveries_are_a_figure(run: RunMaker) -> None:
    deliver(run, 4, 2, 88 * SECOND, process=5)
    deliver(run, 4, 2, 88 * SECOND + 1, process=5)
    result = results(run.judge())["A23"]
    assert result.passed
    assert result.figures == {"again": 2, "copies_max": 3}


def test_without_groups_their_checks_are_beside_the_point(run: RunMaker) -> None:
    run.delivered = []
    judgement = run.judge(only=["A23"])
    assert str(results(judgement)["A23"].verdict) == "not-applicable"
