"""Requirements of a run, which log counts, and whether two judges agree; without Spark."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketbed.chaos.checks.judgement import Judgement, judge_run
from rocketbed.chaos.checks.result import CheckResult, Verdict, judged, not_applicable, not_run
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.search.runner import run_plan
from rocketbed.pipeline import agreement as pipeline_agreement
from rocketbed.pipeline.agreement import compare, verify_run
from rocketbed.pipeline.checks.queue_sums import batch_sums
from rocketbed.pipeline.checks.replicas import first_difference
from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.files.splits import Replica
from rocketbed.pipeline.jobs.common import Job, JobSettings, WrongUsage
from rocketbed.pipeline.jobs.inputs import BrokerLog, ReplicaLog
from rocketbed.pipeline.jobs.verify.inputs import read_requirement, read_run
from rocketbed.pipeline.jobs.verify.job import VerifyOptions, choose_truth, verify
from rocketbed.pipeline.jobs.verify.logs import firm_end
from rocketbed.pipeline.requirement import write_requirement

PLAN = Plan(
    name="tiny",
    seed=1,
    shape=Shape(brokers=2, nameservers=1, repl="async"),
    producers=Producers(count=1, rate=10),
    consumers=Consumers(count=1),
    faults_s=1.0,
    recovery_s=2.0,
)
ALL_WELL = [
    judged(id_, 5, "messages", [])
    for id_ in (
        "lost-write",
        "phantom-write",
        "duplicate",
        "inconsistent-offset",
        "moved-write",
        "nonmonotonic-send",
        "dense-queue-offsets",
        "equal-logs",
        "unknown-value",
        "log-files-tile",
        "record-checksums",
        "no-silent-damage",
        "nothing-beyond-log",
        "queue-entries-match-log",
    )
] + [judged("queue-entries-complete", 5, "queues", []), judged("group-skip", 5, "messages", [])]
SPARK_WELL = ("V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "V10", "V11", "V12")


def plain(**counts: int) -> list[CheckResult]:
    """Plain answers, with findings in some."""
    return [
        judged(result.id, 5, "messages", [f"{result.id} {n}" for n in range(counts[result.id])])
        if result.id in counts
        else result
        for result in ALL_WELL
    ]


def spark(**counts: int) -> list[dict[str, Any]]:
    """Spark's answers."""
    return [
        {
            "id": id_,
            "verdict": "violated" if counts.get(id_) else "ok",
            "count": counts.get(id_, 0),
            "examples": [{"text": f"{id_} says"}] if counts.get(id_) else [],
        }
        for id_ in SPARK_WELL
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "note"),
    [
        ({}, {}, ""),
        ({"lost-write": 2}, {"V1": 2}, "lost 2"),
        (
            {"duplicate": 3, "moved-write": 1},
            {"V3": 1, "V11": 2},
            "duplicated 1, order and place 2",
        ),
        (
            {
                "equal-logs": 1,
                "record-checksums": 1,
                "dense-queue-offsets": 4,
                "queue-entries-complete": 2,
            },
            {"V4": 1, "V10": 1},
            "damage 2",
        ),
    ],
)
def test_judges_that_see_the_same_agree(
    ours: dict[str, int], theirs: dict[str, int], note: str
) -> None:
    result = compare(plain(**ours), spark(**theirs))
    assert (result.verdict, result.examined, result.found) == (Verdict.OK, 7, 0)
    assert note in result.note


@pytest.mark.parametrize(
    ("ours", "theirs", "expected_text"),
    [
        (
            {"lost-write": 1},
            {},
            "lost: Spark's V1 found 0 (nothing), the plain lost-write found 1",
        ),
        ({}, {"V1": 1}, "lost: Spark's V1 found 1 (V1: V1 says), the plain lost-write found 0"),
        ({"lost-write": 1}, {"V1": 2}, "lost: Spark's V1 found 2"),
        ({"duplicate": 1}, {}, "duplicated: Spark's V3 found 0"),
        ({}, {"V7": 1}, "order and place: Spark's V6, V7, V11 found 1 (V7: V7 says)"),
        ({"equal-logs": 1}, {}, "damage: Spark's V4, V5, V10, V12 found 0"),
        ({}, {"V8": 1}, "queues: Spark's V8 found 1"),
    ],
)
def test_disagreeing_judges_are_a_finding(
    ours: dict[str, int], theirs: dict[str, int], expected_text: str
) -> None:
    result = compare(plain(**ours), spark(**theirs))
    assert (result.verdict, result.found) == (Verdict.VIOLATED, 1)
    assert expected_text in result.findings[0]
    assert not result.harmless
    assert Judgement(record=None, results=[result]).finding_ids == ["second-opinion"]


def test_checks_that_did_not_run_cannot_disagree() -> None:
    silent = [not_run("lost-write", "m", "cut"), not_applicable("group-skip", "m", "no groups")]
    unaffected = [result for result in ALL_WELL if result.id not in ("lost-write", "group-skip")]
    result = compare(silent + unaffected, spark(V1=1))
    assert (result.verdict, result.examined) == (Verdict.OK, 5)
    assert compare([], spark()).verdict is Verdict.DID_NOT_RUN


def test_image_findings_count_for_one_side_only() -> None:
    images = judged(
        "duplicate", 5, "messages", ["value 3 is 2 times in the log of b1 (image 1, kill)"]
    )
    unaffected = [result for result in ALL_WELL if result.id != "duplicate"]
    assert compare([images, *unaffected], spark()).verdict is Verdict.OK


def test_a_verify_that_fails_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run_plan(PLAN, directory=tmp_path / "run")
    assert outcome.judgement is not None
    directory = tmp_path / "run"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = verify_run(directory, outcome.judgement, lambda line: None)
    assert result.verdict is Verdict.DID_NOT_RUN
    assert "verify ended with 1 and left no report" in result.note

    def fails(directory: Path, requirement: Path, report: Path) -> int:
        report.write_text(json.dumps({"error": "no Java 17 or newer", "checks": []}))
        return 4

    monkeypatch.setattr(pipeline_agreement, "_run", fails)
    result = verify_run(directory, outcome.judgement, lambda line: None)
    assert result.note == "verify: no Java 17 or newer"
    assert judge_run(directory, recoveries=0).exit_code == 0


def test_requirements_of_a_run_are_passed_on(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    assert run_plan(PLAN, directory=directory).verdict == "pass"
    required = read_requirement(write_requirement(directory))
    assert (required.excused, required.damaged, required.turns) == ((), (), 0)
    run = read_run(directory)
    assert list(run.leaders) == ["b"]
    assert [store.partition("=")[0] for store in run.stores] == ["b/b1", "b/b2"]
    assert run.names.brokers == {"b1": "b", "b2": "b", "b": "b"}
    end = choose_ends(run.stores)
    assert required.agreed == {node: end for node in ("b1", "b2") if node != run.leaders["b"]}


def choose_ends(stores: tuple[str, ...]) -> int:
    """End of the logs of these stores, the same in all."""
    from rocketbed.pipeline.files.paths import parse_paths
    from rocketbed.pipeline.files.splits import data_end

    (end,) = {data_end(replica) for replica in parse_paths(",".join(stores))}
    return end


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"groups": {"b": ["b1"]}, "stores": {}}'])
def test_run_without_a_usable_record_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(PipelineError, match=r"run\.json"):
        read_run(tmp_path)


def test_run_without_its_master_cannot_be_checked(tmp_path: Path) -> None:
    row: dict[str, Any] = {"groups": {"b": ["b1", "b2"]}, "stores": {"b1": "stores/b1"}}
    for leaders, pattern in (({}, "had no master"), ({"b": "b2"}, "the store of b2")):
        (tmp_path / "run.json").write_text(json.dumps(row | {"leaders": leaders}))
        with pytest.raises(PipelineError, match=pattern):
            read_run(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1, "excused": 4}'])
def test_broken_requirement_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirement.json").write_text(text)
    with pytest.raises(PipelineError, match=r"requirement\.json"):
        read_requirement(tmp_path / "requirement.json")


def replica(name: str, end: int) -> ReplicaLog:
    return ReplicaLog(Replica("b", name, f"/{name}"), 0, end, 1, end)


def test_the_longest_log_counts_unless_another_is_named() -> None:
    logs = (replica("b1", 70), replica("b2", 90), replica("b3", 90))
    broker = BrokerLog("b", logs, 0, 70)
    assert choose_truth([broker], {}).leaders["b"] is logs[1]
    assert choose_truth([broker], {"b": "b1"}).leaders["b"] is logs[0]
    with pytest.raises(WrongUsage, match="--leader b=b9: no such replica among its stores"):
        choose_truth([broker], {"b": "b9"})
    with pytest.raises(WrongUsage, match="--leader zz=b1: no such broker among the stores"):
        choose_truth([broker], {"zz": "b1"})


def test_the_order_of_a_topic_is_of_reads() -> None:
    """Without a history it passed, unchecked."""
    job = Job("verify", JobSettings(stores=("/s",)))
    with pytest.raises(WrongUsage, match="--ordered-topic looks at what readers got: give"):
        verify(job, VerifyOptions(ordered_topics=("T",)))


@pytest.mark.parametrize(("copies", "end"), [(1, 90), (2, 80), (3, 70), (4, 0)])
def test_end_held_by_enough_replicas(copies: int, end: int) -> None:
    assert firm_end([80, 70, 90], copies) == end


def test_the_first_byte_that_differs(tmp_path: Path) -> None:
    first_path, second_path = tmp_path / "one", tmp_path / "other"
    first_path.write_bytes(bytes(100))
    second_path.write_bytes(bytes(60) + b"\1" + bytes(39))
    assert first_difference(first_path, second_path, 50, 50) == 60
    assert first_difference(first_path, first_path, 50, 50) == 50


def test_sums_of_a_queue_see_what_changed_places() -> None:
    import pyarrow

    def sums(places: list[int], size: int = 100) -> dict[str, Any]:
        count = len(places)
        batch = pyarrow.RecordBatch.from_pydict(
            {
                "topic": ["t"] * count,
                "queue_id": pyarrow.array([1] * count, pyarrow.int32()),
                "queue_offset": list(range(count)),
                "physical_offset": places,
                "size": pyarrow.array([size] * count, pyarrow.int32()),
            }
        )
        row: dict[str, Any] = batch_sums("b/b1", 0, 1 << 40, batch).to_pylist()[0]
        return row

    right = sums([0, 100, 200])
    assert (right["entries"], right["beyond"], right["topic"]) == (3, 0, "t")
    assert sums([0, 100, 200]) == right
    for wrong in (sums([0, 200, 100]), sums([0, 100, 300]), sums([0, 100, 200], size=101)):
        assert (wrong["first"], wrong["second"]) != (right["first"], right["second"])
    assert sums([0, 100, 1 << 40]) == sums([0, 100]) | {"beyond": 1}
