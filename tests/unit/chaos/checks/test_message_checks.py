"""Checks of messages: each with a violation, and with the closest innocent case."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rocketbed.chaos.checks.judgement import RunVerdict
from rocketbed.chaos.evidence.history import Outcome, Row
from tests.support.plain_passes import form
from tests.support.run_maker import (
    COUNT,
    MS,
    SECOND,
    Ids,
    RunMaker,
    Sent,
    Written,
    body_of,
    results,
    spec_of,
    violated,
)

Change = Callable[[RunMaker], None]


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")


def add(run: RunMaker, *rows: Callable[[Ids, Written], list[Row]]) -> None:
    run.rows += [partial(_make, make) for make in rows]


def _make(
    make: Callable[[Ids, Written], list[Row]], _run: RunMaker, built: Written, ids: Ids
) -> list[Row]:
    return make(ids, built)


def lost(run: RunMaker) -> None:
    run.sends.append(Sent(99, queue_offset=12, physical=9000))


def unknown_fate(run: RunMaker) -> None:
    run.sends += [Sent(99, Outcome.INFO), Sent(98, Outcome.WEAK), Sent(97, Outcome.FAIL)]
    run.sends[3] = Sent(3, Outcome.INFO, queue_offset=-1, physical=-1)


def unread(run: RunMaker) -> None:
    run.read_values = [value for value in range(COUNT) if value != COUNT - 1]


def unread_unknown(run: RunMaker) -> None:
    """No client was promised it."""
    unread(run)
    run.sends[COUNT - 1] = Sent(COUNT - 1, Outcome.INFO, queue_offset=-1, physical=-1)


def phantom(run: RunMaker) -> None:
    run.sends[7] = Sent(7, Outcome.FAIL, queue_offset=-1, physical=-1)


def not_sent(run: RunMaker) -> None:
    del run.sends[11]


def other_body(run: RunMaker) -> None:
    run.sends[3] = Sent(3, body=body_of(3) + b"more")


def delivered_unknown(run: RunMaker) -> None:
    add(run, lambda ids, built: [ids.deliver(555, 0, 0, 85 * SECOND)])


def doubled(run: RunMaker) -> None:
    run.specs.append(spec_of(4))
    run.read_values = run.delivered = list(range(COUNT))


def retried(run: RunMaker) -> None:
    """Another attempt of an operation has a value of its own; both may be stored."""
    body = body_of(COUNT, operation=4)
    run.specs.append(spec_of(COUNT, body=body))
    run.sends.append(Sent(COUNT, operation=4, body=body))
    run.delivered = list(range(COUNT))
    run.read_values = list(range(COUNT))
    run.committed = {0: COUNT // 2}
    run.sends[-1].outcome = Outcome.INFO


def two_at_one_offset(run: RunMaker) -> None:
    run.logs["b3"] = [*run.specs[:-1], spec_of(777, queue_id=1)]
    run.sends.append(Sent(777, Outcome.INFO, queue_offset=-1, physical=-1))


def shorter_slave(run: RunMaker) -> None:
    run.logs["b3"] = run.specs[:15]


def moved(run: RunMaker) -> None:
    run.sends[6] = Sent(6, physical=17)


def place_not_told(run: RunMaker) -> None:
    run.sends[6] = Sent(6, queue_offset=-1, physical=-1)


def overtaken(run: RunMaker) -> None:
    """Message 6 began when 8 had been answered, and is stored before it."""
    run.sends[6].invoked_ns = 200 * MS


def side_by_side(run: RunMaker) -> None:
    run.sends[6].invoked_ns = 60 * MS
    run.sends[6].returned_ns = 300 * MS


def pull_goes_back_within(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 0, [(0, 0), (4, 2), (2, 1)], 60 * SECOND))


def pull_rises(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 0, [(0, 0), (2, 1), (4, 2)], 60 * SECOND))


def pull_skips_within(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 0, [(0, 0), (4, 2)], 60 * SECOND))


def pull_begins_late(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 0, [(4, 2)], 60 * SECOND))


def pull_begins_early(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 2, [(2, 1)], 60 * SECOND))


def pull_where_asked(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 2, [(4, 2)], 60 * SECOND))


def led_back(run: RunMaker) -> None:
    add(
        run,
        lambda ids, built: ids.pull(9, 0, 0, [(0, 0), (2, 1)], 60 * SECOND, end_told=1),
        lambda ids, built: ids.pull(9, 0, 1, [(2, 1)], 61 * SECOND),
    )


def sought_back(run: RunMaker) -> None:
    add(
        run,
        lambda ids, built: ids.pull(9, 0, 0, [(0, 0), (2, 1)], 60 * SECOND),
        lambda ids, built: ids.pull(9, 0, 0, [(0, 0)], 61 * SECOND),
    )


def led_beyond(run: RunMaker) -> None:
    add(
        run,
        lambda ids, built: ids.pull(9, 0, 0, [(0, 0)], 60 * SECOND, end_told=3),
        lambda ids, built: ids.pull(9, 0, 3, [(6, 3)], 61 * SECOND),
    )


def sought_beyond(run: RunMaker) -> None:
    add(
        run,
        lambda ids, built: ids.pull(9, 0, 0, [(0, 0)], 60 * SECOND),
        lambda ids, built: ids.pull(9, 0, 3, [(6, 3)], 61 * SECOND),
    )


def vanished(run: RunMaker) -> None:
    run.sends.append(Sent(99, Outcome.INFO, queue_offset=-1, physical=-1))
    add(run, lambda ids, built: [ids.deliver(99, 1, 12, 85 * SECOND)])


def read_too_soon(run: RunMaker) -> None:
    add(run, lambda ids, built: [ids.deliver(20, *built.places[20][:2], 100 * MS)])


def read_while_sent(run: RunMaker) -> None:
    """A reader may have it before its producer has the answer."""
    add(run, lambda ids, built: [ids.deliver(20, *built.places[20][:2], 201 * MS)])


def in_order_twice(run: RunMaker) -> None:
    """First deliveries count: a repetition of old ones is no disorder."""
    run.record.ordered_topics = ["Trial"]
    add(run, lambda ids, built: [ids.deliver(0, 0, 0, 88 * SECOND)])


CASES: list[tuple[Change, set[str]]] = [
    (lost, {"lost-write", "loss-within-bound"}),
    (unknown_fate, set()),
    (unread, {"unseen-message"}),
    (unread_unknown, set()),
    (phantom, {"phantom-write"}),
    (not_sent, {"unknown-value"}),
    (other_body, {"unknown-value"}),
    (delivered_unknown, {"unknown-value", "inconsistent-offset", "vanished-read"}),
    (doubled, {"duplicate"}),
    (retried, set()),
    (two_at_one_offset, {"inconsistent-offset", "equal-logs"}),
    (shorter_slave, set()),
    (moved, {"moved-write"}),
    (place_not_told, set()),
    (overtaken, {"nonmonotonic-send"}),
    (side_by_side, set()),
    (pull_goes_back_within, {"nonmonotonic-poll", "poll-skip"}),
    (pull_rises, set()),
    (pull_skips_within, {"poll-skip"}),
    (pull_begins_late, {"wrong-poll-position"}),
    (pull_begins_early, {"wrong-poll-position"}),
    (pull_where_asked, set()),
    (led_back, {"reader-goes-back"}),
    (sought_back, set()),
    (led_beyond, {"reader-skip"}),
    (sought_beyond, set()),
    (vanished, {"vanished-read"}),
    (read_too_soon, {"future-read"}),
    (read_while_sent, set()),
    (in_order_twice, set()),
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


def test_a_clean_run_passes(run: RunMaker) -> None:
    judgement = run.judge()
    assert judgement.verdict is RunVerdict.PASS, [
        (result.id, result.note) for result in judgement.results if not result.harmless
    ]
    assert judgement.exit_code == 0
    by_id = results(judgement)
    assert by_id["lost-write"].examined == COUNT
    assert by_id["unknown-value"].examined == 5 * COUNT
    assert by_id["group-skip"].examined == COUNT


def test_ordered_messages_in_another_order(run: RunMaker) -> None:
    run.record.ordered_topics = ["Trial"]
    run.delivered = []
    add(
        run,
        lambda ids, built: [
            ids.deliver(value, *built.places[value][:2], 80 * SECOND + rank * MS)
            for rank, value in enumerate([2, 0, 1, *range(3, COUNT)])
        ],
    )
    judgement = run.judge()
    assert violated(judgement) == {"order-violation"}
    assert "operation 0" in results(judgement)["order-violation"].findings[0]


@pytest.mark.parametrize(("offset", "expected"), [(0, set()), (None, {"order-violation"})])
def test_ordered_reader_had_later_messages_before_a_loss(
    tmp_path: Path, offset: int | None, expected: set[str]
) -> None:
    """The message at offset 0 was lost, message 0 got the place, and its reader had already passed
    it."""
    run = RunMaker(tmp_path / "run", nodes=("b1",))
    run.record.ordered_topics = ["Trial"]
    run.delivered = []
    for send in run.sends:
        send.invoked_ns = 50 * SECOND + send.value * 10 * MS
        send.returned_ns = send.invoked_ns + 5 * MS
    run.event(20 * SECOND, "b1", "exit", cause="powercut")
    run.event(21 * SECOND, "b1", "start", id=0)
    run.event(22 * SECOND, "b1", "recovered", end=0)
    orders = [2, 0, 1, *range(3, COUNT)]

    def rows(ids: Ids, built: Written) -> list[Row]:
        before = [] if offset is None else [ids.deliver(500, 0, offset, 10 * SECOND)]
        return before + [
            ids.deliver(value, *built.places[value][:2], 80 * SECOND + rank * MS)
            for rank, value in enumerate(orders)
        ]

    add(run, rows)
    assert violated(run.judge(only=["order-violation"])) == expected


@pytest.mark.parametrize(
    ("offset", "at_s", "expected"),
    [
        (0, 55, set()),
        (1, 55, {"order-violation"}),
        (0, 20, {"order-violation"}),
        (None, 55, {"order-violation"}),
    ],
)
def test_ordered_reader_had_got_a_second_masters_messages(
    run: RunMaker, offset: int | None, at_s: int, expected: set[str]
) -> None:
    """At the place of message 0 its reader had got a second master's message, and continued after
    it."""
    run.record.ordered_topics = ["Trial"]
    run.delivered = []
    for send in run.sends:
        send.invoked_ns = 50 * SECOND + send.value * 10 * MS
        send.returned_ns = send.invoked_ns + 5 * MS
    run.strike(54 * SECOND, "b2", "double", for_s=3.0)
    orders = [2, 0, 1, *range(3, COUNT)]

    def rows(ids: Ids, built: Written) -> list[Row]:
        before = [] if offset is None else [ids.deliver(500, 0, offset, at_s * SECOND)]
        return before + [
            ids.deliver(value, *built.places[value][:2], 80 * SECOND + rank * MS)
            for rank, value in enumerate(orders)
        ]

    add(run, rows)
    assert violated(run.judge(only=["order-violation"])) == expected


def test_a_finding_says_where_and_what_stood_around(run: RunMaker) -> None:
    run.strike(100 * MS, "b2", "pause", for_s=1.0)
    run.sends[12] = Sent(12, physical=17)
    (example,) = results(run.judge())["moved-write"].examples
    assert (example.value, example.topic, example.queue, example.offset) == (12, "Trial", 0, 6)
    assert example.roles == {"b1": "master", "b2": "paused", "b3": "slave"}
    assert example.faults == ["pause b2"]
    assert len(example.around) == 7
    assert example.around[3].startswith("offset 6: value 12")


@pytest.mark.parametrize(
    ("reported", "expected"), [(False, {"unseen-message", "moved-write"}), (True, set())]
)
def test_damaged_record_is_not_at_its_place(
    run: RunMaker, reported: bool, expected: set[str]
) -> None:
    """Its queue's number was flipped on the only copy, and copied from there."""
    run.sends[12] = Sent(12, queue=5)
    run.read_values = [value for value in range(COUNT) if value != 12]
    at = run._built().places[12][2] + 12
    hit = f"commitlog/{0:020d} byte {at}"
    run.event(SECOND, "b2", "damaged", hit=hit, kind="flip", untold=False)
    if reported:
        run.event(2 * SECOND, "b2", "reported", event="store.unqueued_record", text="Trial")
    assert violated(run.judge(only=["unseen-message", "moved-write"])) == expected


def test_examples_are_the_first_and_the_farthest(run: RunMaker) -> None:
    run.specs = [spec_of(value) for value in range(60)]
    run.sends = [Sent(value, physical=100_000 * value + 1) for value in range(60)]
    result = results(run.judge())["moved-write"]
    assert result.found == 60
    shown_values = [example.value for example in result.examples]
    assert len(shown_values) == 32
    assert shown_values[:16] == list(range(16))
    assert set(shown_values[16:]) == set(range(44, 60))


def test_a_long_lag_is_a_figure(run: RunMaker) -> None:
    add(run, lambda ids, built: ids.pull(9, 0, 0, [(0, 0)], 60 * SECOND))
    result = results(run.judge())["read-lag"]
    assert result.figures["lag_max_ms"] == pytest.approx(60_000 - 25)
