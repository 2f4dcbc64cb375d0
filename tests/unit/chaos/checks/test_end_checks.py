"""Required results of readers and tables at the end."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.keys import OFFSET_MASK, pack
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.history import Function, Row
from rocketbed.chaos.evidence.record import Expectation, Promise
from tests.support.run_maker import (
    COUNT,
    GROUP,
    MS,
    NODES,
    SECOND,
    TOPIC,
    Ids,
    RunMaker,
    Sent,
    Written,
    results,
    spec_of,
    violated,
    write_table,
)
from tests.support.stores import SEGMENT, Spec, build

Change = Callable[[RunMaker], None]
END = COUNT // 2
"""Messages in each queue."""
FOLLOWER = 7

PROCESS = 5


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    maker = RunMaker(tmp_path / "run")
    maker.record.consumer_groups = {"group-1": GROUP}
    maker.record.followers = {"consumer-2": FOLLOWER}
    follow(maker, range(COUNT))
    maker.strike(SECOND, "b1", "reset")
    for node in NODES:
        keep(maker, node, END, END)
    return maker


def keep(run: RunMaker, node: str, *positions: int) -> None:
    """Write a node's table of positions, queue by queue; the last value counts."""
    rows = {str(queue): offset for queue, offset in enumerate(positions)}
    table = {"offsetTable": {f"{TOPIC}@group-1": rows}}
    run.after.append(lambda path: write_table(path / "stores" / node, "consumerOffset.json", table))


def follow(run: RunMaker, values: "range | list[int]", time_ns: int = 85 * SECOND) -> None:
    """Let the follower get these messages, with a pull for each queue."""

    def rows(_run: RunMaker, built: Written, ids: Ids) -> list[Row]:
        return [
            row
            for queue in (0, 1)
            for row in ids.pull(
                FOLLOWER,
                queue,
                0,
                [(v, built.places[v][1]) for v in values if built.places[v][0] == queue],
                time_ns,
            )
        ]

    run.rows.append(rows)


def relabel(spec: Spec, tag: str) -> Spec:
    names = dict(spec.properties) | {"TAGS": tag}
    return replace(spec, properties=tuple(names.items()))


def as_it_should_be(run: RunMaker) -> None:
    pass


def another_tag(run: RunMaker) -> None:
    run.specs[5] = relabel(run.specs[5], "u")


def another_tag_by_a_disk(run: RunMaker) -> None:
    """Alter b2's table: the other nodes have a copy of it."""
    another_tag(run)
    hit = f"commitlog/{0:020d} bytes 0 to 4096"
    run.event(SECOND, "b2", "damaged", hit=hit, kind="misdirect", untold=False)
    run.event(2 * SECOND, "b2", "reported", event="store.damage", text="a sector")


def another_tag_elsewhere(run: RunMaker) -> None:
    another_tag(run)
    hit = f"commitlog/{0:020d} bytes 90000 to 90512"
    run.event(SECOND, "b2", "damaged", hit=hit, kind="misdirect", untold=False)
    run.event(2 * SECOND, "b2", "reported", event="store.damage", text="a sector")


def a_group_keeps_nothing(run: RunMaker) -> None:
    keep(run, "b1")


def a_group_is_behind(run: RunMaker) -> None:
    keep(run, "b1", END, END - 1)


def a_group_is_beyond(run: RunMaker) -> None:
    keep(run, "b1", END, END + 1_000_000)


def a_group_got_nothing(run: RunMaker) -> None:
    run.delivered, run.committed = [], {0: 0, 1: 0}


def a_group_stopped_half_way(run: RunMaker) -> None:
    run.delivered, run.committed = list(range(COUNT // 2)), {0: END // 2, 1: END // 2}


def let_consume(path: Path) -> None:
    for node in ("b1", "b2", "b3"):
        table = {"subscriptionGroupTable": {"group-1": {"consumeEnable": True}}}
        (path / "stores" / node / "config" / "subscriptionGroup.json").write_text(json.dumps(table))


def a_slave_has_old_positions(run: RunMaker) -> None:
    run.after.append(let_consume)

    def commit(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [ids.commit(1, 5, at_s * SECOND) for at_s in (81, 97)]

    run.rows.append(commit)
    keep(run, "b3", END, 4)


def a_slave_lacks_what_was_committed_just_now(run: RunMaker) -> None:
    keep(run, "b3")


def a_topic_is_forgotten(run: RunMaker) -> None:
    run.after.append(lambda path: (path / "stores/b2/config/topics.json").unlink())


def change_checkpoint(run: RunMaker, change: Callable[[bytes], bytes]) -> None:
    def after(path: Path) -> None:
        checkpoint = path / "stores" / "b2" / "checkpoint"
        checkpoint.write_bytes(change(checkpoint.read_bytes()))

    run.after.append(after)


def a_checkpoint_names_another_record(run: RunMaker) -> None:
    change_checkpoint(run, lambda data: data[:24] + data[32:40] + data[24:32] + data[40:])


def a_checkpoint_names_a_queue_offset(run: RunMaker) -> None:
    change_checkpoint(run, lambda data: data[:47] + b"\1" + data[48:])


def pulls_without_messages(run: RunMaker) -> None:
    run.rows.clear()
    follow(run, [])


def one_message_missed(run: RunMaker) -> None:
    run.rows.clear()
    follow(run, [value for value in range(COUNT) if value != 9])


def passed_before_a_loss(run: RunMaker) -> None:
    one_message_missed(run)
    run.rows.clear()
    follow(run, [value for value in range(COUNT) if value != 9], 240 * MS)
    run.strike(250 * MS, "b1", "powercut", written=10_000, durable=1_000)
    run.event(251 * MS, "b1", "recovered", end=1_000)


@pytest.mark.parametrize(
    ("is_lost", "kept_messages", "expected"),
    [(True, END, set()), (True, END - 1, {"tables-complete"}), (False, END, {"tables-complete"})],
)
def test_a_loss_brings_positions_down_to_the_end(
    run: RunMaker, is_lost: bool, kept_messages: int, expected: set[str]
) -> None:
    def commit(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        return [ids.commit(1, END + 5, 80 * SECOND), ids.commit(1, END, 97 * SECOND)]

    run.rows.append(commit)
    for node in ("b1", "b2", "b3"):
        keep(run, node, END, kept_messages)
    if is_lost:
        run.strike(81 * SECOND, "b1", "powercut", written=10_000, durable=1_000)
        run.event(82 * SECOND, "b1", "recovered", end=1_000)
    run.after.append(let_consume)
    assert violated(run.judge(only=["tables-complete"])) == expected


CASES: list[tuple[Change, set[str]]] = [
    (as_it_should_be, set()),
    (another_tag, {"altered-label"}),
    (another_tag_by_a_disk, set()),
    (another_tag_elsewhere, {"altered-label"}),
    (a_group_keeps_nothing, {"group-backlog"}),
    (a_group_is_behind, {"group-backlog"}),
    (a_group_is_beyond, {"offset-overrun", "group-backlog"}),
    (a_group_got_nothing, {"group-skip"}),
    (a_group_stopped_half_way, {"group-skip"}),
    (a_slave_has_old_positions, {"tables-complete"}),
    (a_slave_lacks_what_was_committed_just_now, set()),
    (a_topic_is_forgotten, {"tables-complete"}),
    (a_checkpoint_names_another_record, {"tables-complete"}),
    (a_checkpoint_names_a_queue_offset, {"tables-complete"}),
    (pulls_without_messages, {"follower-skip"}),
    (one_message_missed, {"poll-skip", "follower-skip"}),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_finds_just_that(run: RunMaker, change: Change, expected: set[str]) -> None:
    change(run)
    judgement = run.judge()
    assert violated(judgement) == expected, [
        (result.id, result.findings) for result in judgement.findings
    ]


def test_queue_of_a_damaged_record_is_asked_of_no_table(run: RunMaker) -> None:
    run.logs["b2"] = [*run.specs, replace(spec_of(COUNT), queue_id=32_769)]
    assert violated(run.judge(only=["tables-complete"])) == set()


def test_follower_may_have_passed_a_record_replaced_after_a_loss(run: RunMaker) -> None:
    passed_before_a_loss(run)
    result = results(run.judge())["follower-skip"]
    assert (result.found, result.allowed_found) == (0, 1)


def test_group_owes_no_position_in_a_lost_queue(run: RunMaker) -> None:
    """Retention does not excuse it."""
    run.record.facts["retention_ns"] = SECOND
    run.rows.clear()
    for value in range(1, COUNT, 2):
        run.sends[value] = Sent(value, queue=1, queue_offset=value // 2)
    run.specs = [spec for spec in run.specs if spec.queue_id == 0]
    keep(run, "b1", END)
    result = results(run.judge(only=["group-backlog"]))["group-backlog"]
    assert (result.found, result.examined) == (0, 1)


def without_queue_1(run: RunMaker) -> None:
    """No log has any message of it, and none begins with 0."""
    specs = [spec for spec in run.specs if spec.queue_id == 0]

    def begin_later(path: Path) -> None:
        for node in NODES:
            for name in ("commitlog", "consumequeue", "index"):
                shutil.rmtree(path / "stores" / node / name)
            build(path / "stores" / node, specs, first=SEGMENT)

    run.after.insert(0, begin_later)
    for node in NODES:
        keep(run, node, END)


@pytest.mark.parametrize(
    ("verb", "kept_messages", "is_lost"),
    [("powercut", 2_000, True), ("powercut", 9_900, False), ("kill", 10_000, False)],
)
def test_group_owes_no_position_for_messages_lost_before_expiry(
    run: RunMaker, verb: str, kept_messages: int, is_lost: bool
) -> None:
    """No log has any message of the second queue, and none begins with 0."""
    run.record.facts["retention_ns"] = SECOND
    run.record.promise = Promise(replication="async", copies=1)
    run.rows.clear()
    for value in range(1, COUNT, 2):
        run.sends[value] = Sent(value, queue=1, queue_offset=value // 2, returned_ns=40 * SECOND)
    run.strike(50 * SECOND, "b1", verb, written=10_000, durable=kept_messages)
    run.event(51 * SECOND, "b1", "recovered", end=kept_messages)
    without_queue_1(run)
    result = results(run.judge(only=["group-backlog"]))["group-backlog"]
    assert (result.found, result.allowed_found) == ((0, 1) if is_lost else (1, 0))


@pytest.mark.parametrize(
    ("sent_s", "seen_s", "is_lost"), [(40, 0, True), (40, 50, False), (50, 0, False)]
)
def test_group_owes_no_position_for_a_second_masters_messages(
    run: RunMaker, sent_s: int, seen_s: int, *, is_lost: bool
) -> None:
    """Excused unless a reader got it later, or it was sent while there was one master. What the
    only master took has expired, so the queue's end must still be reported."""
    run.record.facts["retention_ns"] = SECOND
    run.rows.clear()
    run.read_values = list(range(0, COUNT, 2))
    for value in range(1, COUNT, 2):
        sent_ns = sent_s * SECOND
        run.sends[value] = Sent(value, queue=1, queue_offset=value // 2, returned_ns=sent_ns)
    if seen_s:
        last = COUNT - 1 - COUNT % 2
        got = [(last, last // 2)]
        run.rows.append(lambda run, built, ids: ids.pull(9, 1, last // 2, got, seen_s * SECOND))
    step = "at 39s double b2 for 2s"
    run.strike(39 * SECOND, "b2", "double", step=step, targets=["b2"], for_s=2.0)
    run.strike(41 * SECOND, "b2", "heal", step=step, targets=["b2"])
    run.event(41 * SECOND, "b2", "start", role="SLAVE", id=1)
    without_queue_1(run)
    result = results(run.judge(only=["group-backlog"]))["group-backlog"]
    assert (result.found, result.allowed_found) == ((0, 1) if is_lost else (1, 0))


def test_an_offset_that_damage_made_has_no_place() -> None:
    """Damage may make an offset too large for a key."""
    packed = passes.pack(passes.column([1, 1]), passes.column([OFFSET_MASK, OFFSET_MASK + 1]))
    assert list(packed) == [pack(1, OFFSET_MASK), pack(1, OFFSET_MASK + 1)]
    assert pack(1, OFFSET_MASK + 1) == -1


@pytest.mark.parametrize("required_check", ["order-violation", "no-such-check"])
def test_required_check_that_did_not_run_is_no_pass(run: RunMaker, required_check: str) -> None:
    run.record.expect = Expectation(checks=("lost-write", required_check))
    judgement = run.judge()
    assert results(judgement)["lost-write"].passed
    assert results(judgement)[required_check].verdict is Verdict.DID_NOT_RUN
    assert (str(judgement.verdict), judgement.exit_code) == ("unknown", 6)


@pytest.mark.parametrize(
    ("recovery_s", "strike_s", "delay_s", "expected"),
    [
        (1, 0, 1, Verdict.OK),
        (1, 0, 5, Verdict.VIOLATED),
        (0, 0, 5, Verdict.NOT_APPLICABLE),
        (80, 0, 5, Verdict.NOT_APPLICABLE),
        (80, None, 1, Verdict.OK),
        (80, None, 5, Verdict.VIOLATED),  # without a fault nothing may be late at any time
        (0, None, 5, Verdict.NOT_APPLICABLE),
    ],
)
def test_late_calm_sends_arrive_soon(
    run: RunMaker, recovery_s: int, strike_s: int | None, delay_s: int, expected: Verdict
) -> None:
    run.record.recovery_ns = recovery_s * SECOND
    run.events.clear()
    if strike_s is not None:
        run.strike(strike_s * SECOND, "b1", "reset")
    last = run.sends[-1]
    run.sends[-1] = replace(last, invoked_ns=84 * SECOND, returned_ns=84 * SECOND + 5 * MS)
    run.rows.clear()
    follow(run, [], SECOND)
    follow(run, range(COUNT), 84 * SECOND + delay_s * SECOND)
    run.record.consumer_groups = {}
    assert results(run.judge(only=["late-delivery"]))["late-delivery"].verdict is expected


def test_lateness_under_faults_is_a_metric(run: RunMaker) -> None:
    run.record.recovery_ns, run.record.consumer_groups = 50 * SECOND, {}
    early = [replace(one, invoked_ns=SECOND, returned_ns=2 * SECOND) for one in run.sends[:-1]]
    late = replace(run.sends[-1], invoked_ns=84 * SECOND, returned_ns=84 * SECOND + 5 * MS)
    run.sends[:] = [*early, late]
    run.rows.clear()
    follow(run, range(COUNT), 11 * SECOND)
    result = results(run.judge(only=["delivery-delay"]))["delivery-delay"]
    assert (result.examined, result.found) == (COUNT - 1, 0)
    assert result.figures["delay_max_ms"] == 9000


def test_delivery_before_the_acknowledgement_was_not_late(run: RunMaker) -> None:
    run.record.recovery_ns, run.record.consumer_groups = 50 * SECOND, {}
    run.sends[:] = [replace(one, invoked_ns=SECOND, returned_ns=9 * SECOND) for one in run.sends]
    run.rows.clear()
    follow(run, range(COUNT), 2 * SECOND)
    figures = results(run.judge(only=["delivery-delay"]))["delivery-delay"].figures
    assert figures["delay_p50_ms"] == figures["delay_max_ms"] == 0


@pytest.mark.parametrize(
    ("back_s", "again_s", "expected"), [(71, 75, (0, 1)), (71, 71.5, (1, 0)), (99, 75, (1, 0))]
)
def test_group_that_went_back_gets_newer_messages(
    run: RunMaker, back_s: int, again_s: float, expected: tuple[int, int]
) -> None:
    run.record.recovery_ns, run.delivered, last = 1, [], run.sends[-1]
    run.sends[-1] = replace(last, invoked_ns=70 * SECOND, returned_ns=70 * SECOND + 5 * MS)
    times = [60 * SECOND, int(again_s * SECOND), 76 * SECOND]

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        places = zip((0, 0, COUNT - 1), (0, 0, 1), (0, 0, 11), times, strict=True)
        got = [ids.deliver(*place) for place in places]
        back_ns = back_s * SECOND
        went = {"process": 5, "queue": 0, "operation": GROUP, "queue_offset": 0}
        times_of = {"invoked_ns": back_ns, "returned_ns": back_ns}
        return [*got, ids.row(Function.RESET_OFFSET, **went, **times_of)]

    run.rows[:] = [rows]
    run.record.followers = {}
    result = results(run.judge(only=["late-delivery"]))["late-delivery"]
    assert (result.found, result.allowed_found) == expected


@pytest.mark.parametrize(
    ("process", "disk_ms", "commits_s", "expected"),
    [
        (PROCESS, 200, [(71, 74), (71, 74.5)], (0, 1)),
        (PROCESS, 200, [(71, 72), (73, 74)], (0, 1)),
        (PROCESS, 200, [(71, 71.9), (74.8, 75.1)], (1, 0)),
        (PROCESS, 200, [(60, 70), (76, 80)], (1, 0)),
        (PROCESS + 1, 200, [(71, 75)], (1, 0)),
        (PROCESS, 1, [(71, 74), (71, 74.5)], (1, 0)),
    ],
)
def test_consumer_waiting_for_commits_gets_nothing_meanwhile(
    run: RunMaker,
    process: int,
    disk_ms: int,
    commits_s: list[tuple[float, float]],
    expected: tuple[int, int],
) -> None:
    run.record.facts["disk_ns"] = disk_ms * MS
    run.record.recovery_ns, run.delivered, last = 1, [], run.sends[-1]
    run.sends[-1] = replace(last, invoked_ns=70 * SECOND, returned_ns=70 * SECOND)

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> Iterator[Row]:
        for begin_s, end_s in commits_s:
            times = {"invoked_ns": int(begin_s * SECOND), "returned_ns": int(end_s * SECOND)}
            yield ids.row(Function.COMMIT_OFFSET, process=process, operation=GROUP, **times)
        yield ids.deliver(COUNT - 1, 1, 11, 75 * SECOND, process=PROCESS)

    run.rows[:] = [rows]
    run.record.followers = {}
    result = results(run.judge(only=["late-delivery"]))["late-delivery"]
    assert (result.found, result.allowed_found) == expected


def test_batch_queue_topic_is_recognised(run: RunMaker) -> None:
    def after(path: Path) -> None:
        queue = path / "stores" / "b2" / "batchconsumequeue" / TOPIC / "0"
        queue.mkdir(parents=True)
        (queue / f"{0:020}").touch()

    run.after.append(after)
    finding = f"b2 has batch queues, and no such type for topic {TOPIC} in its topics.json"
    assert results(run.judge())["tables-complete"].findings == (finding,)
