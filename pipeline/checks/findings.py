"""Findings of checks: counted all at once, with a few examples of each.

A check returns a table with one row for each finding: `allowed` (the configuration or a fault
allows it) and `text`, a sentence. A single query counts all findings, so that Spark reads each
table once.
"""

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Check:
    """A check to run. `findings` has the columns `allowed boolean` and `text string`."""

    id: str
    """`V1`, ..."""
    title: str
    findings: "DataFrame"
    unit: str = "messages"


@dataclass(slots=True)
class Answer:
    id: str
    title: str
    verdict: str
    """`ok`, `violated`, `not-applicable`."""
    count: int = 0
    allowed: int = 0
    """Findings that are allowed, not counted in `count`."""
    examples: list[str] = field(default_factory=list)
    """At most 20; allowed findings only if there are no others."""
    note: str = ""

    def as_row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "verdict": self.verdict,
            "count": self.count,
            "allowed": self.allowed,
            "examples": [{"text": text} for text in self.examples],
            "note": self.note,
        }


def not_applicable(id_: str, title: str, note: str) -> Answer:
    """Return the answer of a check that has nothing to examine."""
    return Answer(id_, title, "not-applicable", note=note)


def answer(checks: list[Check]) -> list[Answer]:
    """Run the checks, and return their answers in the same order."""
    from pyspark.sql import functions as f

    if not checks:
        return []
    parts = [
        check.findings.agg(
            f.lit(number).alias("number"),
            f.count_if(~f.col("allowed")).alias("found"),
            f.count_if(f.col("allowed")).alias("allowed"),
        )
        for number, check in enumerate(checks)
    ]
    counted = reduce(lambda table, part: table.unionByName(part), parts).collect()
    answers = []
    for row in sorted(counted, key=lambda row: int(row["number"])):
        check = checks[row["number"]]
        verdict = "violated" if row["found"] else "ok"
        answers.append(Answer(check.id, check.title, verdict, row["found"], row["allowed"]))
    add_examples(checks, answers)
    return answers


def add_examples(checks: list[Check], answers: list[Answer]) -> None:
    """Fill in example sentences of the findings, or of the allowed ones if there are no others."""
    from pyspark.sql import functions as f

    parts = [
        check.findings.where(f.col("allowed") == f.lit(result.count == 0))
        .select(f.lit(number).alias("number"), "text")
        .limit(EXAMPLES_MAX)
        for number, (check, result) in enumerate(zip(checks, answers, strict=True))
        if result.count or result.allowed
    ]
    if not parts:
        return
    for row in reduce(lambda table, part: table.unionByName(part), parts).collect():
        answers[row["number"]].examples.append(str(row["text"]))
    for result in answers:
        result.examples.sort()
