"""First sentence about a failing run: the step that lost messages, and all checks that saw it."""

from array import array

from rocketbed.chaos.checks.context import FaultSpan
from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import CheckResult, Example, Severity, judged
from rocketbed.chaos.evidence.record import Promise, RunRecord
from rocketbed.chaos.evidence.trace import NodeTrace, Trace
from rocketbed.chaos.report.cause import roots
from rocketbed.chaos.report.charts import timeline
from rocketbed.chaos.report.story import Story

MS = 1_000_000
ZERO_NS = 1000 * MS
CUT = FaultSpan("at 1.715s powercut b1", "powercut", ["b1"], ZERO_NS + 1715 * MS, 4000 * MS, 0)
KILL = FaultSpan("at 0.1s kill b1", "kill", ["b1"], ZERO_NS + 100 * MS, ZERO_NS + 200 * MS, 0)


def lost(number: int) -> Example:
    """Acknowledged `number` ms before the power cut, 100 bytes further on for each."""
    time_ns = CUT.begin_ns - number * MS
    return Example(
        f"value {number}", value=number, topic="t", queue=0, offset=number, physical=1000,
        time_ns=time_ns,
    )  # fmt: skip


def judgement(*results: CheckResult) -> tuple[Judgement, RunRecord]:
    record = RunRecord(
        scenario="x", backend="sim", seed=1, promise=Promise(), groups={"b": ["b1"]},
        facts={"zero_ns": ZERO_NS},
    )  # fmt: skip
    return Judgement(record=record, results=list(results), faults=[KILL, CUT]), record


def trace(durable_ns: int) -> Trace:
    """A log whose record at 1000 is on disk from a moment on."""
    times, ends = array("q", [0, durable_ns]), array("q", [1000, 1200])
    return Trace({"b1": NodeTrace(True, times, ends, ends)})


def test_loss_names_the_power_cut_and_the_age() -> None:
    judged_, record = judgement(judged("lost-write", 9, "messages", [lost(40), lost(10)]))
    (root,) = roots(judged_, record, trace(CUT.begin_ns + MS))
    assert root.sentence == (
        "2 messages acknowledged, lost by the power cut of b1 at 0:01.715: not on disk when the"
        " power went, 10 ms to 40 ms after the acknowledgement"
    )
    assert root.moments == [("b1", 1.715)]
    (root,) = roots(judged_, record, None)
    assert root.sentence.endswith("at 0:01.715")


def test_loss_of_synced_data_says_when_it_was_synced() -> None:
    judged_, record = judgement(judged("lost-write", 9, "messages", [lost(90)]))
    (root,) = roots(judged_, record, trace(CUT.begin_ns - 50 * MS))
    assert root.sentence.endswith("at 0:01.715: on disk 40 ms after the acknowledgement")


def test_master_of_the_time_is_blamed_before_an_earlier_slave() -> None:
    example = lost(40)
    example.roles = {"b1": "master", "b2": "slave"}
    judged_, record = judgement(judged("lost-write", 9, "messages", [example]))
    slave = FaultSpan("at 1.7s powercut b2", "powercut", ["b2"], CUT.begin_ns - MS, CUT.end_ns, 0)
    judged_.faults.insert(0, slave)
    (root,) = roots(judged_, record, None)
    assert root.moments == [("b1", 1.715)]


def test_findings_of_one_root_form_one_group() -> None:
    place = Example("two values", value=77, topic="t", queue=0, offset=40)
    judged_, record = judgement(
        judged("inconsistent-offset", 9, "reads", [place]),
        judged("duplicate", 9, "reads", [Example("other", value=5)]),
        judged("acked-before-durable", 9, "acknowledgements", [lost(3)]),
        judged("lost-write", 9, "messages", [lost(40)]),
    )
    first, second = roots(judged_, record, None)
    assert [one.id for one in first.results] == [
        "lost-write",
        "acked-before-durable",
        "inconsistent-offset",
    ]
    assert [one.id for one in second.results] == ["duplicate"]
    assert second.sentence == "duplicate: fails for 1 of 9 reads"


def crash(node: str, time_ns: int) -> CheckResult:
    example = Example(f"{node} ended by itself: boom", node=node, time_ns=time_ns)
    severity = Severity.CRASH
    return judged("no-unexpected-exit", 3, "nodes", [example], severity=severity)


def stall(title: str, text: str) -> CheckResult:
    return judged(title, 1, "waits", [text], severity=Severity.LIVENESS)


def groups_of(faults: list[FaultSpan], *results: CheckResult) -> list[list[str]]:
    """Ids of the findings of each root, in a group of three nodes."""
    judged_, record = judgement(*results)
    judged_.faults[:] = faults
    record.groups, record.end_ns = {"b": ["b1", "b2", "b3"]}, CUT.end_ns
    return [[one.id for one in root.results] for root in roots(judged_, record, None)]


def test_crash_and_waiting_findings_form_one_group() -> None:
    stalls = (
        stall("replicas-equal", "b: after 60 s: b1 does not answer"),
        stall("leader-serves", "b: no master serves 60 s after the faults"),
        stall("nodes-stop", "b1: had to be killed"),
    )
    groups = groups_of([KILL], *stalls, crash("b1", KILL.end_ns))
    assert groups == [["no-unexpected-exit", "leader-serves", "replicas-equal", "nodes-stop"]]


def test_findings_of_other_nodes_stay_apart() -> None:
    replica_stall = stall("replicas-equal", "b: after 60 s: b2 does not answer")
    assert groups_of([KILL], crash("b1", KILL.end_ns), replica_stall) == [
        ["no-unexpected-exit"],
        ["replicas-equal"],
    ]


def test_findings_after_other_steps_stay_apart() -> None:
    """The node was struck again, and that may be why it is waited for."""
    later = stall("replicas-equal", "b: after 60 s: b1 does not answer")
    assert groups_of([KILL, CUT], crash("b1", KILL.end_ns), later) == [
        ["no-unexpected-exit"],
        ["replicas-equal"],
    ]


def test_finding_partly_elsewhere_stays_apart() -> None:
    time_ns = KILL.end_ns
    examples = [Example("one", node="b1", time_ns=time_ns), Example("other", node="b2", time_ns=1)]
    mixed = judged("catch-up-stall", 9, "samples", examples, severity=Severity.LIVENESS)
    assert groups_of([KILL], crash("b1", time_ns), mixed) == [
        ["no-unexpected-exit"],
        ["catch-up-stall"],
    ]


def test_findings_without_a_node_stay_apart() -> None:
    clients = [
        stall(title, "clients: sends under way")
        for title in ("producers-continue", "everything-read")
    ]
    assert groups_of([KILL], *clients) == [["producers-continue"], ["everything-read"]]


def test_dot_marks_the_loss_with_a_line_to_its_finding() -> None:
    judged_, record = judgement(judged("lost-write", 9, "messages", [lost(40)]))
    root_losses = roots(judged_, record, None)
    drawing = timeline(Story(end_s=10.0, recovery_s=0.0, roles={"b1": []}), judged_, root_losses)
    assert '<a href="#root-1"><circle' in drawing
    assert '<a href="#find-lost-write-1"><circle' in drawing
    assert drawing.count('class="thread"') == 1
