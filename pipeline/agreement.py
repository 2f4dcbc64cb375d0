"""`--verify spark`: check a run a second time, by `pipeline verify` in its own process.

The two share the history and the files, and no code: one reads with the testbed's checkers, the
other with Spark. So they have to agree. Where one finds something in a family of checks and the
other nothing, one of the two is wrong, and that is a finding itself.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import CheckResult, Verdict, judged, not_run
from rocketbed.chaos.search.campaign import SECOND_OPINION
from rocketbed.host.extras import install_command
from rocketbed.pipeline.requirement import write_requirement

UNIT: Final = "families of checks"
VERIFY_FILE: Final = "verify.json"
LOG_FILE: Final = "verify.log"
END_S: Final = 30.0
"""Time that an interrupted `verify` has to end."""
RAN: Final = (0, 1)
"""Exit codes of a `verify` that reached a verdict."""


@dataclass(frozen=True, slots=True)
class Family:
    """Checks of both sides that find the same defects."""

    name: str
    spark: tuple[str, ...]
    plain: tuple[str, ...]
    is_counted: bool = False
    """True if both count the same things, so that the counts have to agree too."""
    behind_damage: bool = False
    """True if one side may find damaged records where the other finds none."""


FAMILIES: Final = (
    Family("lost", ("V1",), ("lost-write",), is_counted=True),
    Family("refused and stored", ("V2",), ("phantom-write",)),
    Family("duplicated", ("V3",), ("duplicate",)),
    Family(
        "order and place",
        ("V6", "V7", "V11"),
        ("inconsistent-offset", "moved-write", "nonmonotonic-send", "dense-queue-offsets"),
        behind_damage=True,
    ),
    Family(
        "damage",
        ("V4", "V5", "V10", "V12"),
        ("equal-logs", "unknown-value", "log-files-tile", "record-checksums", "no-silent-damage"),
    ),
    Family(
        "queues",
        ("V8",),
        ("nothing-beyond-log", "queue-entries-match-log", "queue-entries-complete"),
        behind_damage=True,
    ),
    Family("readers", ("V9",), ("group-skip",)),
)


def second_judge(
    verify: str | None, say: Callable[[str], None]
) -> Callable[[Path, Judgement], CheckResult] | None:
    """Return the second judge of a run; None without `--verify`.

    Raises `click.UsageError` where Spark is not installed.
    """
    if verify is None:
        return None
    if importlib.util.find_spec("pyspark") is None:
        raise click.UsageError(f"--verify spark needs pyspark: {install_command('spark')}")
    return lambda directory, judgement: verify_run(directory, judgement, say)


def verify_run(directory: Path, judgement: Judgement, say: Callable[[str], None]) -> CheckResult:
    """Let Spark judge a run's directory. True if it agrees with the first verdict.

    Raises `KeyboardInterrupt` when interrupted, with Spark ended.
    """
    say("checking with Spark")
    if judgement.record is None:
        return not_run(SECOND_OPINION, UNIT, f"the run has no record: {judgement.error}")
    try:
        path = write_requirement(directory)
    except Exception as error:
        return not_run(
            SECOND_OPINION, UNIT, f"the requirement of the run cannot be determined: {error!r}"
        )
    report = directory / VERIFY_FILE
    report.unlink(missing_ok=True)
    code = _run(directory, path, report)
    try:
        row = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = f"verify ended with {code} and left no report ({error}); see {LOG_FILE}"
        return not_run(SECOND_OPINION, UNIT, reason)
    if code not in RAN:
        return not_run(
            SECOND_OPINION, UNIT, f"verify: {row.get('error') or f'it ended with {code}'}"
        )
    return compare(judgement.results, row["checks"])


def compare(plain: Sequence[CheckResult], spark: Sequence[Mapping[str, Any]]) -> CheckResult:
    """Disagreements of the two sides, with the results of each."""
    theirs = _spark_side(spark)
    ours = {result.id: result for result in plain}
    damage = next(family for family in FAMILIES if family.name == "damage")
    both_damaged = (
        _defects_of_spark(damage.spark, theirs) > 0 and _plain_found(damage.plain, ours) > 0
    )
    findings: list[str] = []
    compared = 0
    agreed: list[str] = []
    for family in FAMILIES:
        silent = [id_ for id_ in family.plain if _did_not_run(ours.get(id_))]
        if len(silent) == len(family.plain) or not any(id_ in theirs for id_ in family.spark):
            continue
        compared += 1
        seen_by_spark = _defects_of_spark(family.spark, theirs)
        seen_plainly = _plain_found(family.plain, ours)
        same = (seen_by_spark > 0) == (seen_plainly > 0)
        if family.is_counted and not both_damaged:
            same = seen_by_spark == seen_plainly
        if not same and not (family.behind_damage and both_damaged):
            findings.append(
                f"{family.name}: Spark's {_show(family.spark)} found {seen_by_spark}"
                f" {_first_text(family.spark, theirs)}, the plain {_show(family.plain)} found"
                f" {seen_plainly} {_first_plain(family.plain, ours)}"
            )
        elif seen_by_spark:
            agreed.append(f"{family.name} {seen_by_spark}")
    note = f"both found: {', '.join(agreed)}" if agreed else ""
    return judged(SECOND_OPINION, compared, UNIT, findings, note)


def _run(directory: Path, requirement: Path, report: Path) -> int:
    """`pipeline verify` in a process group of its own; its exit code."""
    command = [sys.executable, "-P", "-m", "rocketbed", "pipeline", "verify"]
    command += ["--run", str(directory), "--requirement", str(requirement)]
    command += ["--report", str(report)]
    with open(directory / LOG_FILE, "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def _spark_side(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return results by id, without those of checks that had nothing to check."""
    rows_by_id: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["verdict"] != "not-applicable":
            rows_by_id.setdefault(row["id"], []).append(row)
    return rows_by_id


def _defects_of_spark(ids: Sequence[str], theirs: Mapping[str, list[Mapping[str, Any]]]) -> int:
    return sum(int(row["count"]) for id_ in ids for row in theirs.get(id_, ()))


def _plain_found(ids: Sequence[str], ours: Mapping[str, CheckResult]) -> int:
    return sum(_of_final_logs(ours[id_]) for id_ in ids if id_ in ours)


def _of_final_logs(result: CheckResult) -> int:
    """Findings, without those of images out of the middle of a run, which only one side reads."""
    if result.verdict is not Verdict.VIOLATED:
        return 0
    elsewhere = sum("(image " in text for text in result.findings)
    return 0 if elsewhere == len(result.findings) else result.found - elsewhere


def _did_not_run(result: CheckResult | None) -> bool:
    return result is None or result.verdict in (Verdict.DID_NOT_RUN, Verdict.NOT_APPLICABLE)


def _show(ids: Sequence[str]) -> str:
    return ", ".join(ids)


def _first_text(ids: Sequence[str], theirs: Mapping[str, list[Mapping[str, Any]]]) -> str:
    for id_ in ids:
        for row in theirs.get(id_, ()):
            if row["count"] and row["examples"]:
                return f"({id_}: {row['examples'][0]['text']})"
    return "(nothing)"


def _first_plain(ids: Sequence[str], ours: Mapping[str, CheckResult]) -> str:
    for id_ in ids:
        if id_ in ours and _of_final_logs(ours[id_]):
            return f"({id_}: {ours[id_].findings[0]})"
    return "(nothing)"
