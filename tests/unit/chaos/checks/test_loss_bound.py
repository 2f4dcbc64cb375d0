"""The bound of chaos.md 2.3 and `acked-before-durable`, case by case.

The log of these runs is built, and traces report its ends: what each node had written and what was
on disk at each time. Message `v` ends at `ends[v]`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.chaos.evidence.record import Expectation, Promise
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.chaos.report.text import excuse_texts
from rocketbed.inspect.record import RECORD_SIZE_MIN
from tests.support.run_maker import (
    COUNT,
    MS,
    SECOND,
    Ids,
    RunMaker,
    Sent,
    Written,
    results,
    spec_of,
    violated,
)
from tests.support.stores import build, encode

CUT_NS = 400 * MS
"""Later than all messages."""
BACK_NS = 500 * MS


class Bound:
    """A run in which the first messages survive, and those from `kept` on are lost."""

    def __init__(self, path: Path, *, nodes: Sequence[str] = ("b1", "b2", "b3")) -> None:
        self.run = RunMaker(path / "run", nodes=tuple(nodes))
        self.offsets = build(path / "whole", self.run.specs)
        self.ends = [
            offset + len(encode(spec, offset=0, queue_offset=0, store_ms=0))
            for spec, offset in zip(self.run.specs, self.offsets, strict=True)
        ]
        self.run.trace = Trace()
        for send in self.run.sends:
            place = send.value % 2, send.value // 2, self.offsets[send.value]
            send.queue, send.queue_offset, send.physical = place

    def promise(self, **fields: object) -> None:
        self.run.record.promise = Promise(**fields)  # type: ignore[arg-type]

    def writes(self, node: str, *, lag: int = 0, durable: int | None = None) -> None:
        """Let the node get each message within its send, `lag` messages late; `durable` messages
        reach the disk (None: each at once)."""
        assert self.run.trace is not None
        trace = self.run.trace.node(node)
        for value in range(COUNT):
            reached = value - lag
            if reached < 0:
                continue
            flushed = reached + 1 if durable is None else min(reached + 1, durable)
            on_disk = self.ends[flushed - 1] if flushed else 0
            trace.add(value * 10 * MS + 2 * MS, self.ends[reached], on_disk)

    def holds(self, node: str, time_ns: int, *, messages: int) -> None:
        """Set the end of the node's log, all on disk, to this many messages from a time on."""
        assert self.run.trace is not None
        end = self.ends[messages - 1] if messages else 0
        self.run.trace.node(node).add(time_ns, end, end)

    def survive(self, messages: int) -> None:
        """Set the number of messages in the final logs."""
        self.run.specs = self.run.specs[:messages]

    def back(self, node: str, *, messages: int) -> None:
        """Add the recovery of a node with this many messages."""
        end = self.ends[messages - 1] if messages else 0
        self.run.event(BACK_NS, node, "recovered", end=end)

    def judge(self) -> Judgement:
        return self.run.judge()


@pytest.fixture
def bound(tmp_path: Path) -> Bound:
    bound_run = Bound(tmp_path)
    bound_run.promise()
    return bound_run


def cut_master(bound: Bound, *, durable: int, kept_messages: int, others_hold: int = COUNT) -> None:
    """Cut the master's power after all messages; it returns with `kept_messages` of them."""
    bound.writes("b1", durable=durable)
    for node in ("b2", "b3"):
        bound.writes(node)
        bound.holds(node, CUT_NS - 1, messages=others_hold)
    bound.run.event(CUT_NS, "b1", "exit", cause="powercut")
    bound.holds("b1", CUT_NS, messages=min(durable, kept_messages))
    bound.holds("b1", BACK_NS, messages=kept_messages)
    bound.back("b1", messages=kept_messages)
    for node in ("b2", "b3"):
        bound.holds(node, BACK_NS + 1, messages=kept_messages)
    bound.survive(kept_messages)


def test_async_flush_may_lose_unsynced_messages(bound: Bound) -> None:
    cut_master(bound, durable=20, kept_messages=22)
    judgement = bound.judge()
    assert violated(judgement) == set(), [(r.id, r.findings) for r in judgement.findings]
    (row,) = judgement.bounds
    assert (row["allowed_messages"], row["lost"], row["outside"]) == (4, 2, 0)
    assert (row["above_offset"], row["unclean_loss"]) == (bound.ends[19], 2)
    assert "allowed 4 messages" in row["text"]
    result = results(judgement)["lost-write"]
    assert (result.found, result.allowed_found) == (0, 2)
    (line,) = result.excused
    assert line.excuse == Excuse("power cut of b1, which came back as master", CUT_NS, BACK_NS)
    assert (line.count, line.values) == (2, (22, 23))
    assert list(judgement.ledger[line.excuse]) == ["lost-write"]
    assert excuse_texts(judgement, bound.run.record) == [
        "lost-write 2 by: power cut of b1, which came back as master (0:00.4 to 0:00.5)"
    ]


def test_permitted_loss_is_a_miss_where_none_is_expected(bound: Bound) -> None:
    cut_master(bound, durable=20, kept_messages=22)
    bound.run.record.expect = Expectation(loss="none")
    judgement = bound.judge()
    assert violated(judgement) == {"nothing-lost"}
    assert results(judgement)["nothing-lost"].found == 2
    assert judgement.exit_code == 2


def test_nothing_on_disk_may_be_lost(bound: Bound) -> None:
    cut_master(bound, durable=20, kept_messages=18)
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound"} <= violated(judgement)
    lost = {example.value for example in results(judgement)["lost-write"].examples}
    assert lost == {18, 19}
    assert judgement.exit_code == 1


def test_sync_flush_loses_nothing_by_a_power_cut(bound: Bound) -> None:
    """A message that the disk did not have was acknowledged too soon: another check reports it."""
    bound.promise(flush="sync")
    cut_master(bound, durable=20, kept_messages=20)
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound", "acked-before-durable"} <= violated(judgement)
    assert results(judgement)["acked-before-durable"].found == 4


@pytest.mark.parametrize(("before", "expected"), [(0, set()), (1, {"acked-before-durable"})])
def test_sends_to_listeners_are_acknowledged_like_others(
    bound: Bound, before: int, expected: set[str]
) -> None:
    """A record ends at least its minimum size after its start."""
    bound.promise(flush="sync")
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    size = RECORD_SIZE_MIN + 10

    def rows(_run: RunMaker, _built: Written, ids: Ids) -> list[Row]:
        place = {"physical_offset": bound.ends[-1] - size + before, "length": 10}
        times = {"invoked_ns": 2 * SECOND, "returned_ns": 3 * SECOND}
        return [
            ids.row(Function.TELL, topic=ids.told_topic, process=1, value=500, **place, **times)
        ]

    bound.run.rows.append(rows)
    assert violated(bound.run.judge(only=["acked-before-durable"])) == expected


@pytest.mark.parametrize(
    ("lied_ns", "expected"),
    [
        (1 * MS, set()),
        (CUT_NS - 10 * MS, {"acked-before-durable"}),  # it acknowledged too soon before
        (
            CUT_NS + 10 * MS,
            {"acked-before-durable", "lost-write", "loss-within-bound"},
        ),  # and nothing had lied when the power went
    ],
)
def test_lying_disk_excuses_its_node_from_then_on(
    bound: Bound, lied_ns: int, expected: set[str]
) -> None:
    bound.promise(flush="sync")
    bound.run.events.append((lied_ns, *_disk_step("b1", "lost-fsync")))
    cut_master(bound, durable=20, kept_messages=20)
    assert expected <= violated(bound.judge()) <= expected | {"unseen-message", "vanished-read"}


def _disk_step(node: str, fault: str) -> tuple[Function, str, str, dict[str, Any]]:
    return Function.NEMESIS, node, "disk", {"step": f"at 1s disk {node} {fault}"}


def test_the_lost_are_all_above_one_offset(bound: Bound) -> None:
    """A missing message before a stored one is no torn tail, even if the later ones might be
    missing."""
    cut_master(bound, durable=10, kept_messages=22)
    bound.survive(22)
    del bound.run.specs[15]
    for node in ("b1", "b2", "b3"):
        bound.run.logs[node] = bound.run.specs
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound"} <= violated(judgement)
    assert [example.value for example in results(judgement)["lost-write"].examples] == [15]
    assert judgement.bounds[0]["outside"] == 1


def test_a_kill_takes_nothing(bound: Bound) -> None:
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    bound.run.event(CUT_NS, "b1", "exit", cause="kill")
    bound.back("b1", messages=COUNT)
    bound.survive(COUNT - 1)
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound"} <= violated(judgement)
    (row,) = judgement.bounds
    assert row["event"] == "nothing that may take messages"
    assert (row["allowed_messages"], row["lost"], row["outside"]) == (0, 1, 1)


def test_table_has_the_loss_that_the_promise_forbids(bound: Bound) -> None:
    """A power cut may take nothing under synchronous flush, so no bound explains what it took."""
    bound.promise(flush="sync")
    cut_master(bound, durable=20, kept_messages=18, others_hold=18)
    judgement = bound.judge()
    lost = results(judgement)["lost-write"].found
    assert lost == COUNT - 18
    assert [row["event"] for row in judgement.bounds] == [
        "power cut of b1, which came back as master"
    ]
    assert [(row["lost"], row["outside"]) for row in judgement.bounds] == [(lost, lost)]
    figures = results(judgement)["loss-within-bound"].figures
    assert (figures["lost"], figures["outside"]) == (lost, lost)


def test_a_slaves_power_cut_takes_nothing(bound: Bound) -> None:
    bound.writes("b1")
    bound.writes("b2", durable=3)
    bound.writes("b3")
    bound.run.event(CUT_NS, "b2", "exit", cause="powercut")
    bound.survive(COUNT - 1)
    assert {"lost-write", "loss-within-bound"} <= violated(bound.judge())


@pytest.mark.parametrize("emptied", [("b2", "b3"), ("b2",), ()])
def test_new_disk_loses_all_once_its_slaves_are_emptied(
    bound: Bound, emptied: Sequence[str]
) -> None:
    """A slave that removes it on its own has lost it."""
    bound.promise(flush="sync", replication="sync", copies=2)
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    bound.run.strike(CUT_NS, "b1", "wipe")
    bound.holds("b1", CUT_NS, messages=0)
    for node in emptied:
        bound.run.strike(BACK_NS, node, "wipe")
    bound.back("b1", messages=0)
    bound.survive(0)
    bound.run.specs = [spec_of(COUNT)]
    bound.run.sends.append(Sent(COUNT, invoked_ns=SECOND, queue=0, queue_offset=0, physical=0))
    bound.run.read_values = bound.run.delivered = [COUNT]
    end = bound.ends[-1] - bound.offsets[-1]
    for node in ("b1", "b2", "b3"):
        assert bound.run.trace is not None
        bound.holds(node, BACK_NS + MS, messages=0)
        bound.run.trace.node(node).add(SECOND + MS, end, end)
    judgement = bound.judge()
    (row,) = judgement.bounds
    if len(emptied) < 2:
        assert row["allowed_messages"] == 0
        assert "lost-write" in violated(judgement)
        return
    assert (row["lost"], row["unclean_loss"], row["outside"]) == (COUNT, COUNT, 0)
    assert violated(judgement) <= {"offset-regress"}


@pytest.mark.parametrize(
    ("promise", "is_allowed"),
    [
        (Promise(flush="async", replication="sync", copies=2), False),
        (Promise(flush="async", replication="async", copies=1), True),
    ],
)
@pytest.mark.parametrize("lag", [0, COUNT])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_masters_power_cut_spares_the_slaves_copies(
    bound: Bound, promise: Promise, is_allowed: bool, lag: int, is_damaged: bool
) -> None:
    """Damage there may be mistaken for an end that was never written."""
    bound.run.record.promise = promise
    if is_damaged:
        bound.run.event(CUT_NS - 9 * MS, "b2", "damaged", hit="zeros", kind="cut", untold=False)
    bound.writes("b1", durable=20)
    bound.writes("b2", lag=lag)
    bound.run.strike(CUT_NS, "b1", "powercut", written=bound.ends[-1], durable=bound.ends[19])
    bound.run.event(CUT_NS, "b1", "exit", cause="powercut", durable=bound.ends[19])
    bound.back("b1", messages=20)
    bound.survive(20)
    judgement = bound.judge()
    assert ("lost-write" in violated(judgement)) == (not is_allowed and not lag and not is_damaged)


def promote(bound: Bound, node: str, *, messages: int) -> None:
    bound.run.event(CUT_NS, "b1", "exit", cause="kill")
    bound.run.event(CUT_NS + 1, node, "promote", former="b1", written=bound.ends[messages - 1])
    bound.run.record.leaders = {"b": node}
    bound.run.event(BACK_NS, node, "recovered", end=bound.ends[messages - 1])
    bound.survive(messages)


@pytest.mark.parametrize(
    ("at_ns", "missing", "is_told", "is_allowed"),
    [
        (CUT_NS - 2 * MS, 0, True, True),
        (CUT_NS - 2 * MS, 0, False, False),
        (CUT_NS - 2 * MS, 1 << 20, True, False),
        (CUT_NS + 9 * MS, 0, True, False),
    ],
)
def test_promoted_slave_may_have_lost_its_damaged_records(
    bound: Bound, at_ns: int, missing: int, is_told: bool, is_allowed: bool
) -> None:
    bound.promise(flush="async", replication="sync", copies=2)
    bound.writes("b1")
    bound.writes("b2")
    bound.writes("b3", lag=5)
    begin = bound.ends[COUNT - 4] + missing
    hit = f"commitlog/{0:020d} bytes {begin} to {begin + 512}"
    bound.run.event(at_ns, "b2", "damaged", hit=hit, kind="misdirect", untold=False)
    if is_told:
        bound.run.event(at_ns + MS, "b2", "reported", event="store.recovery_finding", text="cut")
    bound.holds("b2", CUT_NS - MS, messages=COUNT - 3)
    promote(bound, "b2", messages=COUNT - 3)
    judgement = bound.judge()
    assert ("lost-write" in violated(judgement)) == (not is_allowed)
    (row,) = judgement.bounds
    assert row["allowed_messages"] == 3 * is_allowed


def test_elected_leader_may_not_have_lost_its_damaged_records(bound: Bound) -> None:
    bound.promise(flush="async", replication="sync", copies=2)
    bound.run.record.facts["elects"] = True
    for node, lag in (("b1", 0), ("b2", 0), ("b3", 5)):
        bound.writes(node, lag=lag)
    begin = bound.ends[COUNT - 4]
    hit = f"commitlog/{0:020d} bytes {begin} to {begin + 512}"
    bound.run.event(CUT_NS - 2 * MS, "b2", "damaged", hit=hit, kind="misdirect", untold=False)
    bound.run.event(CUT_NS - MS, "b2", "reported", event="store.recovery_finding", text="cut")
    bound.holds("b2", CUT_NS - MS, messages=COUNT - 3)
    promote(bound, "b2", messages=COUNT - 3)
    assert "lost-write" in violated(bound.judge())


def test_async_replication_loses_messages_the_promoted_lacked(bound: Bound) -> None:
    bound.writes("b1")
    bound.writes("b2", lag=3)
    bound.writes("b3", lag=5)
    promote(bound, "b2", messages=COUNT - 3)
    judgement = bound.judge()
    assert violated(judgement) == set(), [(r.id, r.findings) for r in judgement.findings]
    assert [row["lost"] for row in judgement.bounds] == [3]


def test_the_promoted_loses_nothing_that_it_had(bound: Bound) -> None:
    bound.writes("b1")
    bound.writes("b2", lag=3)
    bound.writes("b3", lag=5)
    promote(bound, "b2", messages=COUNT - 3)
    bound.survive(COUNT - 5)
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound"} <= violated(judgement)
    assert {example.value for example in results(judgement)["lost-write"].examples} == {19, 20}


def test_sync_replication_promises_a_copy(bound: Bound) -> None:
    """Two copies, and the promoted node has the longest log: an acknowledged message that it lacks
    was acknowledged by the master alone."""
    bound.promise(replication="sync", copies=2)
    bound.writes("b1")
    bound.writes("b2", lag=3)
    bound.writes("b3", lag=5)
    promote(bound, "b2", messages=COUNT - 3)
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound", "acked-before-durable"} <= violated(judgement)
    assert results(judgement)["lost-write"].found == 3


def test_promoting_the_shorter_slave_is_unclean_and_allowed(bound: Bound) -> None:
    bound.promise(replication="sync", copies=2)
    bound.writes("b1")
    bound.writes("b2", lag=4)
    bound.writes("b3")
    promote(bound, "b2", messages=COUNT - 4)
    bound.holds("b3", BACK_NS + 1, messages=COUNT - 4)
    judgement = bound.judge()
    assert violated(judgement) == set(), [(r.id, r.findings) for r in judgement.findings]
    assert (judgement.bounds[0]["lost"], judgement.bounds[0]["unclean_loss"]) == (4, 4)


def test_a_controller_must_not_choose_the_shorter_slave(bound: Bound) -> None:
    bound.run.record.facts["elects"] = True
    bound.promise(replication="sync", copies=2)
    bound.writes("b1")
    bound.writes("b2", lag=4)
    bound.writes("b3")
    promote(bound, "b2", messages=COUNT - 4)
    bound.holds("b3", BACK_NS + 1, messages=COUNT - 4)
    judgement = bound.judge()
    assert {"lost-write", "loss-within-bound"} <= violated(judgement)
    assert results(judgement)["lost-write"].found == 4


def test_unobserved_bound_is_not_guessed(bound: Bound) -> None:
    bound.run.trace = None
    bound.run.strike(CUT_NS, "b1", "powercut")
    bound.back("b1", messages=COUNT)
    judgement = bound.judge()
    assert str(judgement.verdict) == "unknown"
    assert "how far its log reached is unknown" in results(judgement)["loss-within-bound"].note


def test_an_event_tells_what_no_trace_does(bound: Bound) -> None:
    bound.run.trace = None
    bound.run.strike(CUT_NS, "b1", "powercut", written=bound.ends[-1], durable=bound.ends[19])
    bound.back("b1", messages=22)
    bound.survive(22)
    judgement = bound.judge()
    assert violated(judgement) == set(), [(r.id, r.findings) for r in judgement.findings]
    assert judgement.bounds[0]["allowed_messages"] == 4


# --- acknowledged before durable


def test_acknowledged_before_the_flush(bound: Bound) -> None:
    bound.promise(flush="sync")
    bound.writes("b1", durable=10)
    for node in ("b2", "b3"):
        bound.writes(node)
    judgement = bound.judge()
    assert violated(judgement) == {"acked-before-durable"}
    result = results(judgement)["acked-before-durable"]
    assert result.found == COUNT - 10
    assert "not on disk at b1" in result.findings[0]


def test_acknowledged_before_the_replica(bound: Bound) -> None:
    bound.promise(replication="sync", copies=3)
    bound.writes("b1")
    bound.writes("b2")
    bound.writes("b3", lag=1)
    judgement = bound.judge()
    assert violated(judgement) == {"acked-before-durable"}
    assert "only at b1, b2" in results(judgement)["acked-before-durable"].findings[0]


@pytest.mark.parametrize("copies", [1, 2])
def test_acknowledged_in_time(bound: Bound, copies: int) -> None:
    bound.promise(flush="sync", replication="sync", copies=copies)
    bound.writes("b1")
    bound.writes("b2")
    bound.writes("b3", lag=8, durable=2)
    judgement = bound.judge()
    assert violated(judgement) == set()
    assert results(judgement)["acked-before-durable"].examined == COUNT


def test_a_change_of_that_very_moment_counts(bound: Bound) -> None:
    bound.promise(flush="sync")
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    for send in bound.run.sends:
        send.returned_ns = send.value * 10 * MS + 2 * MS
    assert violated(bound.judge()) == set()


def diverge(bound: Bound) -> None:
    """A loss point with unclean loss, and a slave `b3` that keeps the bytes the others lost."""
    bound.promise(replication="sync", copies=3)
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    bound.run.event(CUT_NS, "b1", "exit", cause="powercut", durable=bound.ends[19])
    bound.holds("b1", CUT_NS, messages=20)
    bound.back("b1", messages=20)
    bound.run.specs = [*bound.run.specs[:20], spec_of(30), spec_of(31)]
    bound.run.logs["b3"] = [spec_of(value) for value in range(COUNT)]
    for rank, value in enumerate((30, 31)):
        place = 20 + rank
        bound.run.sends.append(
            Sent(
                value,
                invoked_ns=SECOND + value * MS,
                queue=rank,
                queue_offset=10,
                physical=bound.offsets[place],
            )
        )
        for node in ("b1", "b2"):
            bound.holds(node, SECOND + value * MS + MS, messages=place + 1)
    bound.holds("b2", BACK_NS + 1, messages=20)


def test_stale_log_of_the_right_length_is_no_copy(bound: Bound) -> None:
    """After unclean loss a slave that refused holds as many bytes, with other content."""
    diverge(bound)
    judgement = bound.judge()
    late = [example.value for example in results(judgement)["acked-before-durable"].examples]
    assert late == [30, 31]
    assert results(judgement)["equal-logs"].allowed_found == 2


@pytest.mark.parametrize(("following", "allowed"), [(False, 2), (True, 0)])
def test_other_software_may_not_follow_with_another_log(
    bound: Bound, following: bool, allowed: int
) -> None:
    diverge(bound)
    bound.run.record.facts["software"] = "rocketmq-5.3.3"
    for node in ("b1", "b2", "b3"):
        role = {"master": node == "b1", "following": node != "b1"}
        if node == "b3":
            role["following"] = following
        bound.run.event(2 * SECOND, node, "sample", written=bound.ends[21], **role)
    result = results(bound.judge())["equal-logs"]
    assert result.allowed_found == allowed
    assert result.found == 2 - allowed


@pytest.mark.parametrize(("node", "expected"), [("b2", [22]), ("b1", []), ("b", [])])
def test_node_that_serves_unsynced_messages(bound: Bound, node: str, expected: list[int]) -> None:
    """Only the disk of the node that answered counts, and only if that is known."""
    bound.promise(flush="sync", copies=1)
    bound.writes("b1")
    bound.writes("b2", durable=22)
    bound.writes("b3")

    def pulls(run: RunMaker, built: Written, ids: Ids) -> list[Row]:
        rows = [ids.pull(9, 0, v // 2, [(v, v // 2)], CUT_NS) for v in (20, 22)]
        number = {"b": ids.node, "b1": ids.b1, "b2": ids.b2}[node]
        return [row._replace(node=number) for pair in rows for row in pair]

    bound.run.rows.append(pulls)
    judgement = bound.run.judge(only=["read-before-flush"])
    result = results(judgement)["read-before-flush"]
    assert [one.value for one in result.examples] == expected, result


@pytest.mark.parametrize(("after_s", "expected"), [(15, []), (40, [20])])
def test_answer_may_travel_while_its_disk_is_lost(
    bound: Bound, after_s: int, expected: list[int]
) -> None:
    """A connection may be kept during a partition."""
    bound.promise(flush="sync", copies=1)
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    bound.holds("b1", 2 * SECOND, messages=0)

    def pull(run: RunMaker, built: Written, ids: Ids) -> list[Row]:
        rows = ids.pull(9, 0, 10, [(20, 10)], (2 + after_s) * SECOND)
        return [row._replace(node=ids.b1) for row in rows]

    bound.run.rows.append(pull)
    result = results(bound.run.judge(only=["read-before-flush"]))["read-before-flush"]
    assert [one.value for one in result.examples] == expected, result


@pytest.mark.parametrize("following", [True, False])
def test_former_master_that_follows_again_has_the_whole_log(
    bound: Bound, tmp_path: Path, following: bool
) -> None:
    """Real machines are sampled now and then, so a cut may show in no sample: the log was longer
    before, and is longer again. The node's own report then decides what its promotion may take."""
    run, kept_specs, end = bound.run, bound.run.specs[:20], COUNT + 6
    run.trace = None
    run.specs = [*kept_specs, *(spec_of(value) for value in range(COUNT, end))]
    offsets = build(tmp_path / "second", run.specs)
    last = offsets[-1] + bound.ends[-1] - bound.offsets[-1]
    for place, value in enumerate(range(COUNT, end), start=20):
        place_of_value = (value % 2, place // 2, offsets[place])
        run.sends.append(Sent(value, Outcome.OK, *place_of_value, invoked_ns=SECOND + value * MS))
    for node, written in (("b1", bound.ends[-1]), ("b2", bound.ends[19])):
        run.event(CUT_NS - MS, node, "sample", written=written)
    promote(bound, "b2", messages=20)
    run.specs = kept_specs
    for node in ("b1", "b2", "b3"):
        is_slave = node != "b2"
        run.event(2 * SECOND, node, "sample", written=last, following=is_slave and following)
    run.event(3 * SECOND, "b2", "exit", cause="kill")
    run.event(3 * SECOND + 1, "b1", "promote", former="b2", written=last)
    run.event(3 * SECOND + 2, "b1", "recovered", end=last)
    for node in ("b1", "b2", "b3"):
        is_slave = node != "b1"
        run.event(4 * SECOND, node, "sample", written=last, following=is_slave and following)
    run.event(5 * SECOND, "b1", "exit", cause="kill")
    run.event(5 * SECOND + 1, "b2", "promote", former="b1", written=last)
    run.event(5 * SECOND + 2, "b2", "recovered", end=last)
    judgement = bound.judge()
    first, second, third = judgement.bounds
    assert (first["lost"], second["allowed_messages"]) == (4, 0 if following else 6)
    assert third["allowed_messages"] == 0
    assert ("lost-write" in violated(judgement)) == following


@pytest.mark.parametrize("began_anew", [True, False])
def test_slave_may_ask_to_be_emptied_after_a_new_beginning(bound: Bound, began_anew: bool) -> None:
    """`replicas-equal` reports the operator's work, and whether there was a reason."""
    for node in ("b1", "b2", "b3"):
        bound.writes(node)
    if began_anew:
        bound.run.strike(CUT_NS - 9 * MS, "b1", "wipe")
        bound.holds("b1", CUT_NS - 9 * MS, messages=0)
        bound.run.event(CUT_NS - 8 * MS, "b1", "recovered", end=0)
        bound.holds("b1", CUT_NS - 7 * MS, messages=3)
    promote(bound, "b2", messages=COUNT)
    bound.run.event(SECOND, "b1", "wipe", reason="nothing is common")
    result = results(bound.judge())["replicas-equal"]
    if began_anew:
        (line,) = result.excused
        assert line.excuse.cause == "an operator emptied b1, which said: nothing is common"
    else:
        assert f"though they have the log up to {bound.ends[-1]} in common" in result.findings[0]
    assert result.passed == began_anew
