"""Consumer groups, queries by key, bounds of queues, searches by time: violations and innocent
cases."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rocketbed.chaos.evidence.history import FINAL_READER, Function, Outcome, Row
from tests.support.plain_passes import form
from tests.support.run_maker import (
    COUNT,
    GROUP,
    MS,
    SECOND,
    Ids,
    RunMaker,
    Sent,
    Written,
    results,
    spec_of,
    violated,
    write_table,
)
from tests.support.stores import STORE_MS

Change = Callable[[RunMaker], None]


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    # With a fault, so that late rows in these runs are not judged.
    maker.strike(SECOND, "b1", "reset")
    return maker


def add(run: RunMaker, function: Function, time_ns: int, **fields: int) -> None:
    run.rows.append(partial(_row, function, time_ns, fields))


def _row(
    function: Function,
    time_ns: int,
    fields: dict[str, int],
    _run: RunMaker,
    _built: Written,
    ids: Ids,
) -> list[Row]:
    values = {"invoked_ns": time_ns, "returned_ns": time_ns, "process": 6, **fields}
    return [ids.row(function, **values)]


def deliver(run: RunMaker, value: int, offset: int, time_ns: int, *, process: int) -> None:
    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [ids.deliver(value, value % 2, offset, time_ns, process=process)]

    run.rows.append(rows)


def commit(run: RunMaker, queue: int, offset: int, time_ns: int) -> None:
    """Commits of a member that had read the messages below, before the member that reads everything
    began."""

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [ids.commit(queue, offset, time_ns)]

    if time_ns < 80 * SECOND:
        got_by_another(run, queue, offset)
    run.rows.append(rows)


def got_by_another(run: RunMaker, queue: int, upto: int) -> None:
    for offset in range(upto):
        deliver(run, 2 * offset + queue, offset, 45 * SECOND, process=8)


def offsets_on_disk(run: RunMaker, committed: int) -> None:
    table = {"offsetTable": {"Trial@group-1": {"0": committed}}}
    run.after.append(lambda path: write_table(path / "stores/b1", "consumerOffset.json", table))


# --- groups


def skipped(run: RunMaker) -> None:
    run.delivered = [value for value in range(COUNT) if value != 10]


def not_passed_yet(run: RunMaker) -> None:
    skipped(run)
    run.committed = {0: 5}


def stored_before_it_was_got(run: RunMaker) -> None:
    """Message 10 is at offset 5 of queue 0, and is delivered after a commit of 6."""
    skipped(run)
    run.committed = {}
    deliver(run, 10, 5, 84 * SECOND, process=5)
    commit(run, 0, 6, 83 * SECOND)
    commit(run, 0, 12, 95 * SECOND)


def stored_when_another_member_had_got_it(run: RunMaker) -> None:
    skipped(run)
    run.committed = {}
    deliver(run, 10, 5, 82 * SECOND, process=9)
    commit(run, 0, 6, 83 * SECOND)


def stored_before_it_was_unwanted(run: RunMaker) -> None:
    stored_before_it_was_got(run)
    in_group(run, "another")


def in_group(run: RunMaker, *tags: str) -> None:
    """The group is in the run's record and, with every queue's end, in its nodes' tables."""
    run.record.consumer_groups = {"group-1": GROUP}
    run.record.filters = {"group-1": list(tags)} if tags else {}
    ends = {"0": COUNT // 2, "1": COUNT // 2}

    def write(path: Path) -> None:
        for node in run.nodes:
            store = path / "stores" / node
            write_table(store, "consumerOffset.json", {"offsetTable": {"Trial@group-1": ends}})

    run.after.append(write)


def skipped_and_wanted(run: RunMaker) -> None:
    skipped(run)
    in_group(run, "t")


def skipped_and_unwanted(run: RunMaker) -> None:
    run.delivered = []
    in_group(run, "another")


def got_what_it_did_not_ask_for(run: RunMaker) -> None:
    run.delivered = [10]
    in_group(run, "another")


def went_back(run: RunMaker, *, delivered: int) -> None:
    """The member that reads goes back to the third message of queue 0, and commits that
    position."""
    in_group(run)
    back_ns = 82 * SECOND
    add(run, Function.RESET_OFFSET, back_ns, process=5, queue=0, operation=GROUP, queue_offset=2)
    deliver(run, delivered * 2, delivered, back_ns + MS, process=5)


def went_back_and_got_that(run: RunMaker) -> None:
    went_back(run, delivered=2)
    commit(run, 0, 3, 83 * SECOND)
    run.rows.append(lambda run, built, ids: [ids.commit(0, 12, 95 * SECOND)])


def went_back_and_got_another(run: RunMaker) -> None:
    went_back(run, delivered=3)


def went_back_and_got_its_queue_again(run: RunMaker) -> None:
    """Another member had the queue meanwhile, and got the message that this one went back to."""
    went_back_and_got_another(run)
    deliver(run, 4, 2, 82 * SECOND + MS // 2, process=8)


def went_back_and_got_what_is_before(run: RunMaker) -> None:
    went_back(run, delivered=1)


def went_back_to_what_did_not_count_yet(run: RunMaker) -> None:
    """A slave had it already; the master reports that its queue ends before it."""
    went_back(run, delivered=1)
    run.sends[4].returned_ns = 82 * SECOND + 2 * MS


def went_back_twice(run: RunMaker) -> None:
    """Go back to the fifth message, then to the third before any arrived."""
    moment = 82 * SECOND - MS
    add(run, Function.RESET_OFFSET, moment, process=5, queue=0, operation=GROUP, queue_offset=4)
    went_back_and_got_that(run)


def went_back_twice_and_got_the_first_place(run: RunMaker) -> None:
    moment = 82 * SECOND - MS
    add(run, Function.RESET_OFFSET, moment, process=5, queue=0, operation=GROUP, queue_offset=3)
    went_back_and_got_another(run)


def forgotten(run: RunMaker, *, queried: str = "b1") -> None:
    """Commit to b1 at 50 s, and let a node report less at 79 s."""

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        node = {"b1": ids.b1, "b2": ids.b2}[queried]
        read = ids.row(
            Function.READ_OFFSET,
            process=9,
            queue=0,
            operation=GROUP,
            queue_offset=2,
            node=node,
            invoked_ns=79 * SECOND,
            returned_ns=79 * SECOND,
        )
        commit = ids.commit(0, 6, 50 * SECOND)
        return [commit._replace(node=ids.b1, invoked_ns=50 * SECOND - 2 * MS), read]

    got_by_another(run, 0, 6)
    run.rows.append(rows)


def forgotten_by_one_that_led_in_between(run: RunMaker) -> None:
    forgotten(run)
    run.record.facts["elects"] = True
    run.event(60 * SECOND, "b2", "promote", former="b1", written=0, epoch=2)
    run.event(70 * SECOND, "b1", "promote", former="b2", written=0, epoch=3)


def forgotten_over_planned_turns(run: RunMaker, *, verb: str = "handover") -> None:
    forgotten_by_one_that_led_in_between(run)
    run.strike(60 * SECOND - MS, "b1", "handover")
    run.strike(70 * SECOND - MS, "b2", verb, for_s=1.0)


def forgotten_over_a_kill(run: RunMaker) -> None:
    forgotten_over_planned_turns(run, verb="kill")


def committed_twice(run: RunMaker, *, first: int = 2, software: str = "rocketmq-5.5.0") -> None:
    forgotten(run)
    run.record.facts["software"] = software
    run.rows.append(
        lambda run, built, ids: [ids.commit(0, first, 48 * SECOND)._replace(node=ids.b1)]
    )


def committed_twice_to_ours(run: RunMaker) -> None:
    committed_twice(run, software="rocketbed")


def committed_another_before(run: RunMaker) -> None:
    committed_twice(run, first=3)


def committed_less_since(run: RunMaker) -> None:
    """Commit by a member that had started with a slave's position."""
    forgotten(run)
    run.rows.append(lambda run, built, ids: [ids.commit(0, 2, 70 * SECOND)])


def forgotten_beside_another_member(run: RunMaker, *, begin: int = 45, until: int = 55) -> None:
    """Each pull of a second reader of the queue overwrites the position with its own."""
    forgotten(run)
    for second in (begin, until):
        add(
            run,
            Function.READ_OFFSET,
            second * SECOND,
            process=7,
            queue=0,
            operation=GROUP,
            queue_offset=2,
        )


def forgotten_beside_another_member_without_answer(run: RunMaker) -> None:
    """The last query of that reader comes after all rows, without a time of return."""
    forgotten_beside_another_member(run)
    add(
        run,
        Function.READ_OFFSET,
        56 * SECOND,
        process=7,
        queue=0,
        operation=GROUP,
        outcome=Outcome.INFO,
        returned_ns=-1,
        queue_offset=-1,
    )


def forgotten_after_another_member_left(run: RunMaker) -> None:
    forgotten_beside_another_member(run, begin=40, until=43)


def forgotten_by_a_kill(run: RunMaker) -> None:
    forgotten(run)
    run.event(60 * SECOND, "b1", "exit", cause="kill")
    run.event(75 * SECOND, "b1", "start", id=0)


def forgotten_by_a_kill_after_a_pause(run: RunMaker, *, at_s: int = 52) -> None:
    """The node had no time to save its tables."""
    forgotten_by_a_kill(run)
    run.strike(at_s * SECOND, "b1", "pause", for_s=7.0)


def forgotten_by_a_kill_before_a_pause(run: RunMaker) -> None:
    forgotten_by_a_kill_after_a_pause(run, at_s=62)


def forgotten_by_a_kill_at_once(run: RunMaker) -> None:
    forgotten(run)
    run.event(54 * SECOND, "b1", "exit", cause="kill")
    run.event(75 * SECOND, "b1", "start", id=0)


def forgotten_by_a_kill_before_the_answer_came(run: RunMaker) -> None:
    forgotten(run)
    run.event(50 * SECOND - MS, "b1", "exit", cause="kill")
    run.event(75 * SECOND, "b1", "start", id=0)


def not_known_to_its_slave(run: RunMaker) -> None:
    forgotten(run, queried="b2")


def begun_early_after_going_back(run: RunMaker) -> None:
    """Commits from before the rewind no longer count."""
    commit(run, 0, 6, 60 * SECOND)
    add(
        run, Function.RESET_OFFSET, 62 * SECOND, process=5, queue=0, operation=GROUP, queue_offset=0
    )
    deliver(run, 4, 2, 70 * SECOND, process=9)


def reset_before(run: RunMaker) -> None:
    skipped(run)
    add(run, Function.RESET_OFFSET, SECOND, queue=0, operation=GROUP, queue_offset=3)


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


def lost_later(run: RunMaker, *, got_ns: int) -> None:
    """The last message of queue 0 is lost, and the group then commits a position after it."""
    run.specs = run.specs[: COUNT - 2]
    run.committed = {0: COUNT // 2 - 1}
    run.strike(250 * MS, "b1", "powercut", written=10_000, durable=1_000)
    run.event(251 * MS, "b1", "recovered", end=1_000)
    run.event(252 * MS, "b1", "start", role="master", id=0)
    deliver(run, COUNT - 2, COUNT // 2 - 1, got_ns, process=5)
    run.rows.append(lambda _run, _built, ids: [ids.commit(0, COUNT // 2, 80 * SECOND)])


def lost_and_replaced(run: RunMaker) -> None:
    """The last message of queue 0 is lost at 250 ms, and the next one gets its place."""
    run.specs = [*run.specs[: COUNT - 2], spec_of(COUNT)]
    run.committed = {0: COUNT // 2 - 1}
    run.strike(250 * MS, "b1", "powercut", written=10_000, durable=1_000)
    run.event(251 * MS, "b1", "recovered", end=1_000)
    run.event(252 * MS, "b1", "start", role="master", id=0)
    run.sends[COUNT - 2] = Sent(COUNT - 2, queue=0, queue_offset=COUNT // 2 - 1, physical=8_000)
    run.sends.append(Sent(COUNT, invoked_ns=300 * MS, returned_ns=305 * MS))
    run.delivered = list(range(COUNT - 2))


def filtered_before_a_loss(
    run: RunMaker, *, begun_ns: int, is_answered: bool, lost_ns: int, queue: int
) -> None:
    """Message 10 is sent at 100 ms, and its place was passed before, at 98 ms."""
    run.delivered, run.committed = [], {}
    outcome = Outcome.INFO if queue < 0 else Outcome.WEAK
    lost = Sent(COUNT, outcome, queue, -1, -1, invoked_ns=lost_ns, returned_ns=99 * MS)
    run.sends.append(lost)
    deliver(run, 10, 5, 84 * SECOND, process=5)
    run.strike(95 * MS, "b1", "powercut", written=10_000, durable=500)
    run.event(96 * MS, "b1", "start", role="master", id=0)
    run.event(96 * MS, "b1", "recovered", end=500)
    in_group(run, "t")

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        passed = ids.commit(0, 6, 98 * MS)
        if not is_answered:
            passed = passed._replace(returned_ns=-1, outcome=Outcome.INFO)
        return [ids.commit(0, 0, begun_ns), passed]

    run.rows.append(rows)


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


def not_found_in_recovery(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, -1, 0)


def not_found_in_an_index_with_untold_damage(run: RunMaker) -> None:
    not_found_in_recovery(run)
    run.event(SECOND, "b1", "damaged", hit="index/1", kind="zero")


def not_found_in_a_damaged_index(run: RunMaker) -> None:
    not_found_in_an_index_with_untold_damage(run)
    run.event(2 * SECOND, "b1", "reported", event="store.index_damage", text="an entry")


def not_found_in_an_index_that_was_built_again(run: RunMaker) -> None:
    not_found_in_a_damaged_index(run)
    run.event(3 * SECOND, "b1", "recovered", end=1)


def not_found_where_a_table_was_damaged(run: RunMaker) -> None:
    not_found_in_recovery(run)
    run.event(SECOND, "b1", "damaged", hit="config/topics.json", kind="zero")
    run.event(2 * SECOND, "b1", "reported", event="store.damage", text="a table")


def not_found_in_fault_phase(run: RunMaker) -> None:
    query(run, 4, 40 * SECOND, -1, 0)


def not_found_at_once(run: RunMaker) -> None:
    query(run, 4, 1 * SECOND, -1, 0)


def another_found(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, 3)


def found_where_it_is(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, 2)


def bounds(run: RunMaker, time_ns: int, maximum: int, minimum: int = 0, process: int = 6) -> None:
    fields = {"queue": 0, "value": maximum, "operation": minimum, "process": process}
    add(run, Function.BOUNDS, time_ns, **fields)


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


def behind_the_first_message(run: RunMaker) -> None:
    bounds(run, SECOND, COUNT // 2, 1, process=FINAL_READER)


def at_the_first_message(run: RunMaker) -> None:
    bounds(run, SECOND, COUNT // 2, process=FINAL_READER)


def search(run: RunMaker, offset: int) -> None:
    """Search for the time of message 8, which is at offset 4 of queue 0."""
    add(run, Function.SEARCH_TIME, 60 * SECOND, queue=0, value=STORE_MS + 8000, queue_offset=offset)


def told_more(run: RunMaker, *, node: str = "b1", member: int = 5) -> None:
    """The queue ends at 12, and the second reader had committed 6 there."""

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        place = {"node": {"b1": ids.b1, "b2": ids.b2}[node], "queue": 0, "process": 9}
        at = {"invoked_ns": 79 * SECOND, "returned_ns": 79 * SECOND}
        read = ids.row(Function.READ_OFFSET, operation=GROUP, queue_offset=14, **place, **at)
        end = ids.row(Function.BOUNDS, value=12, operation=0, **place, **at)
        commit = ids.commit(0, 6, 50 * SECOND)._replace(node=ids.b1, process=member)
        return [commit, read, end]

    got_by_another(run, 0, 6)
    run.rows.append(rows)


def told_more_by_a_slave(run: RunMaker) -> None:
    told_more(run, node="b2")


def given_in_another_order(run: RunMaker) -> None:
    for offset in (2, 1, 0):
        deliver(run, 2 * offset, offset, 70 * SECOND, process=9)


def no_message(run: RunMaker) -> None:
    search(run, -1)


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


def after_a_clock_step_of_a_foreign_broker(run: RunMaker) -> None:
    after_a_clock_step(run)
    run.record.facts["target"] = "rocketmq:5.5.0"


def failed_at_the_end(run: RunMaker) -> None:
    query(run, 4, 60 * SECOND, 2)
    add(
        run,
        Function.QUERY_KEY,
        91 * SECOND,
        process=FINAL_READER,
        value=4,
        outcome=Outcome.INFO,
    )


def forgotten_by_a_disk(run: RunMaker) -> None:
    """No table can be written, at a clean stop either."""
    forgotten(run)
    run.strike(52 * SECOND, "b1", "disk", targets=["b1"])


CASES: list[tuple[Change, set[str]]] = [
    (skipped, {"group-skip"}),
    (not_passed_yet, set()),
    (stored_before_it_was_got, {"early-commit"}),
    (stored_when_another_member_had_got_it, set()),
    (stored_before_it_was_unwanted, {"unwanted-tag"}),
    (reset_before, {"group-skip"}),
    (skipped_and_wanted, {"group-skip"}),
    (skipped_and_unwanted, set()),
    (got_what_it_did_not_ask_for, {"unwanted-tag"}),
    (went_back_and_got_that, set()),
    (went_back_and_got_another, {"rewind"}),
    (went_back_and_got_its_queue_again, set()),
    (went_back_and_got_what_is_before, {"rewind"}),
    (went_back_to_what_did_not_count_yet, set()),
    (went_back_twice, set()),
    (went_back_twice_and_got_the_first_place, {"rewind"}),
    (begun_early_after_going_back, set()),
    (forgotten, {"offset-regress", "forgotten-offset", "wrong-reported-offset"}),
    (forgotten_by_one_that_led_in_between, set()),
    (forgotten_over_planned_turns, {"offset-regress"}),
    (forgotten_over_a_kill, set()),
    (forgotten_by_a_disk, {"wrong-reported-offset"}),
    (forgotten_beside_another_member, {"offset-regress", "forgotten-offset"}),
    (forgotten_beside_another_member_without_answer, {"offset-regress", "forgotten-offset"}),
    (committed_twice, {"offset-regress", "forgotten-offset"}),
    (committed_twice_to_ours, {"offset-regress", "forgotten-offset", "wrong-reported-offset"}),
    (committed_another_before, {"offset-regress", "forgotten-offset", "wrong-reported-offset"}),
    (committed_less_since, {"offset-regress"}),
    (
        forgotten_after_another_member_left,
        {"offset-regress", "forgotten-offset", "wrong-reported-offset"},
    ),
    (forgotten_by_a_kill, {"offset-regress", "forgotten-offset"}),
    (forgotten_by_a_kill_after_a_pause, set()),
    (forgotten_by_a_kill_before_a_pause, {"forgotten-offset"}),
    (forgotten_by_a_kill_at_once, set()),
    (forgotten_by_a_kill_before_the_answer_came, set()),
    (not_known_to_its_slave, {"offset-regress"}),
    (begun_too_early, {"offset-regress"}),
    (not_persisted_yet, set()),
    (killed_before_it_was_persisted, set()),
    (killed_long_after_it_was_persisted, {"offset-regress"}),
    (slave_killed_before_it_was_persisted, {"offset-regress"}),
    (stopped_after_the_commit, {"offset-regress"}),
    (committed_beyond, {"offset-overrun"}),
    (stored_beyond, {"offset-overrun"}),
    (stored_at_the_end, set()),
    (not_found_in_recovery, {"query-mismatch"}),
    (not_found_in_an_index_with_untold_damage, {"query-mismatch"}),
    (not_found_in_a_damaged_index, set()),
    (not_found_in_an_index_that_was_built_again, {"query-mismatch"}),
    (not_found_where_a_table_was_damaged, {"query-mismatch"}),
    (not_found_in_fault_phase, {"query-miss-under-faults"}),
    (not_found_at_once, set()),
    (another_found, {"query-mismatch"}),
    (found_where_it_is, set()),
    (failed_at_the_end, {"query-mismatch"}),
    (bounds_crossed, {"bound-error"}),
    (beyond_the_end, {"bound-error"}),
    (back, {"bound-error"}),
    (back_after_a_cut, set()),
    (rising, set()),
    (behind_the_first_message, {"bound-error"}),
    (at_the_first_message, set()),
    (told_more, {"offset-regress", "offset-without-message", "wrong-reported-offset"}),
    (told_more_by_a_slave, {"offset-regress"}),
    (given_in_another_order, {"delivery-order"}),
    (too_early_a_message, {"time-search"}),
    (no_message, {"time-search"}),
    (too_late_a_message, {"time-search"}),
    (the_message_of_the_time, set()),
    (after_a_clock_step, {"time-search"}),
    (after_a_clock_step_of_a_foreign_broker, set()),
    (stored_before_the_one_in_front, {"store-times-rise"}),
]


@pytest.mark.parametrize("plain", [False, True], ids=["numpy", "plain"])
@pytest.mark.parametrize(("change", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_finds_just_that(run: RunMaker, change: Change, expected: set[str], plain: bool) -> None:
    change(run)
    with form(plain=plain):
        judgement = run.judge()
    assert violated(judgement) == expected, [
        (result.id, result.findings) for result in judgement.findings
    ]


@pytest.mark.parametrize(
    ("start_s", "kill_s", "expected"),
    [(60, None, False), (60, 55, True), (60, 61, False), (70, None, True)],
)
def test_member_may_ask_until_it_is_killed(
    run: RunMaker, start_s: int, kill_s: int | None, expected: bool
) -> None:
    """A member last seen at 50 s may have reported its position to a master that started after
    that."""
    told_more(run, member=8)
    run.event(start_s * SECOND, "b1", "start", role="master", id=0)
    if kill_s is not None:
        run.strike(kill_s * SECOND, "consumer-1", "kill", targets=["consumer-1"])
    assert (
        "offset-without-message" in violated(run.judge(only=["offset-without-message"]))
    ) == expected


@pytest.mark.parametrize(
    ("at_s", "expected"), [(70, (1, 0)), (79, (0, 1)), (80, (0, 1)), (90, (1, 0))]
)
def test_position_may_be_passed_at_a_second_master(
    run: RunMaker, at_s: int, expected: tuple[int, int]
) -> None:
    """A second master may have delivered an unacknowledged message there."""
    stored_before_it_was_got(run)
    step = f"at {at_s}s double b2 for 1s"
    run.strike(at_s * SECOND, "b2", "double", step=step, targets=["b2"], for_s=1.0)
    run.strike((at_s + 1) * SECOND, "b2", "heal", step=step, targets=["b2"])
    run.event((at_s + 1) * SECOND, "b2", "start", role="SLAVE", id=1)
    result = results(run.judge(only=["early-commit"]))["early-commit"]
    assert (result.found, result.allowed_found) == expected


def test_warnings_do_not_fail_a_run(run: RunMaker) -> None:
    not_found_in_fault_phase(run)
    judgement = run.judge()
    assert violated(judgement) == {"query-miss-under-faults"}
    assert str(judgement.verdict) == "pass"
    assert judgement.finding_ids == []


def test_redeliveries_are_a_figure(run: RunMaker) -> None:
    deliver(run, 4, 2, 88 * SECOND, process=5)
    deliver(run, 4, 2, 88 * SECOND + 1, process=5)
    result = results(run.judge())["redelivery"]
    assert result.passed
    assert result.figures == {"again": 2, "copies_max": 3}


def test_checks_of_groups_are_not_applicable_without_groups(run: RunMaker) -> None:
    run.delivered = []
    judgement = run.judge(only=["redelivery"])
    assert str(results(judgement)["redelivery"].verdict) == "not-applicable"


@pytest.mark.parametrize(("at_ms", "expected"), [(240, (0, 1)), (79_000, (1, 0))])
def test_message_passed_before_its_loss_may_be_committed_again(
    tmp_path: Path, at_ms: int, expected: tuple[int, int]
) -> None:
    run = RunMaker(tmp_path / "run", nodes=("b1",))
    lost_later(run, got_ns=at_ms * MS)
    result = results(run.judge(only=["offset-overrun"]))["offset-overrun"]
    assert (result.found, result.allowed_found) == expected


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize(("at_ms", "expected"), [(90, (0, 1)), (97, (1, 0))])
def test_member_with_a_tag_filter_may_have_passed_lost_messages(
    tmp_path: Path, at_ms: int, expected: tuple[int, int], is_answered: bool
) -> None:
    """An unanswered commit counts from its begin."""
    run = RunMaker(tmp_path / "run", nodes=("b1",))
    filtered_before_a_loss(
        run, begun_ns=at_ms * MS, is_answered=is_answered, lost_ns=90 * MS, queue=-1
    )
    result = results(run.judge(only=["early-commit"]))["early-commit"]
    assert (result.found, result.allowed_found) == expected


@pytest.mark.parametrize(
    ("lost_ms", "queue", "newer", "expected"),
    [
        (90, 0, 0, (0, 1)),
        (90, 1, 0, (1, 0)),
        (97, 0, 0, (1, 0)),
        (90, -1, 1, (1, 0)),
    ],
    ids=["lost", "of another queue", "sent later", "too few"],
)
def test_place_is_delivered_again_only_after_a_loss(
    tmp_path: Path, lost_ms: int, queue: int, newer: int, expected: tuple[int, int]
) -> None:
    """A loss point without a loss must not excuse everything that a group with a tag filter missed
    later."""
    run = RunMaker(tmp_path / "run", nodes=("b1",))
    filtered_before_a_loss(
        run, begun_ns=90 * MS, is_answered=True, lost_ns=lost_ms * MS, queue=queue
    )
    if newer:
        run.sends[8] = Sent(8, invoked_ns=97 * MS, returned_ns=99 * MS)
    result = results(run.judge(only=["early-commit"]))["early-commit"]
    assert (result.found, result.allowed_found) == expected


@pytest.mark.parametrize(
    ("tags", "at_ms", "expected"),
    [(["t"], 1500, (0, 1)), (["t"], 40_000, (1, 0)), ([], 1500, (1, 0)), ([], 240, (0, 1))],
)
def test_lost_message_of_another_tag_is_passed_undelivered(
    tmp_path: Path, tags: list[str], at_ms: int, expected: tuple[int, int]
) -> None:
    """A member records its answer up to two seconds later."""
    run = RunMaker(tmp_path / "run", nodes=("b1",))
    lost_and_replaced(run)
    in_group(run, *tags)
    run.rows.append(lambda _run, _built, ids: [ids.commit(0, COUNT // 2, at_ms * MS)])
    result = results(run.judge(only=["group-skip"]))["group-skip"]
    assert (result.found, result.allowed_found) == expected


@pytest.mark.parametrize(
    ("at_ms", "paused", "expected"),
    [
        (1500, (), (0, 1)),
        (40_000, (), (1, 0)),
        (40_000, (200, 39_000), (0, 1)),
        (40_000, (200, 5_000), (1, 0)),
        (40_000, (3_000, 39_000), (1, 0)),
    ],
)
def test_receiver_of_a_lost_message_is_beyond_its_successor(
    tmp_path: Path, at_ms: int, paused: tuple[int, ...], expected: tuple[int, int]
) -> None:
    """Delivered by a node that still had it, but not long after it was lost everywhere; or the
    answer waited for a paused member."""
    run = RunMaker(tmp_path / "run", nodes=("b1",))
    if paused:
        begin_ms, end_ms = paused
        run.strike(begin_ms * MS, "", "pause", targets=["consumer-1"], for_s=1)
        run.strike(end_ms * MS, "", "heal", targets=["consumer-1"], step="pause ")
    lost_later(run, got_ns=at_ms * MS)
    run.sends[COUNT - 2] = Sent(COUNT - 2, queue=0, queue_offset=COUNT // 2 - 1, physical=8_000)
    run.specs.append(spec_of(COUNT))
    run.sends.append(Sent(COUNT, invoked_ns=300 * MS, returned_ns=305 * MS))
    run.delivered = list(range(COUNT - 2))
    result = results(run.judge(only=["group-skip"]))["group-skip"]
    assert (result.found, result.allowed_found) == expected
