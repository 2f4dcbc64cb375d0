"""Definition of a check: a function that adds its findings and returns how many things it examined.

    @check("vanished-read", "messages read", final=True)
    def vanished_reads(case: Case, findings: Findings) -> int: ...

It raises `NotRun` when evidence is missing, and `NotApplicable` when the run has nothing for it to
examine. `registry` lists all checks in order.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence, Rows
from rocketbed.chaos.checks.keys import pack
from rocketbed.chaos.checks.loss.bound import Losses
from rocketbed.chaos.checks.result import (
    CheckResult,
    Example,
    Excuse,
    Finding,
    Severity,
    judged,
    not_applicable,
    not_run,
)
from rocketbed.chaos.evidence.history import Function, Outcome

NO_INDEX: Final = "messageIndexEnable=false: nodes kept no index of keys"


class NotRun(Exception):
    """A check lacks the evidence that it needs; the message names it."""


class NotApplicable(Exception):
    """A run did nothing that a check could examine; the message says why."""


@dataclass
class Case:
    """The evidence of a run, and results derived from it that several checks share."""

    evidence: Evidence
    recoveries: int = 0
    """Number of images that `recovery-idempotent` boots twice."""

    @cached_property
    def losses(self) -> Losses:
        return Losses(self.evidence)

    def require_rows(self, functions: Iterable[Function], *outcomes: Outcome, without: str) -> Rows:
        """Return rows as `Evidence.rows` does. Raises `NotApplicable` with the reason `without` if
        the result is empty."""
        rows = self.evidence.rows(functions, *outcomes)
        if not len(rows):
            raise NotApplicable(without)
        return rows

    def require_index(self) -> None:
        """Raise `NotApplicable` if the nodes kept no index of keys."""
        if not self.evidence.record.indexed:
            raise NotApplicable(NO_INDEX)

    def loss_of_last_message(self, queue: int) -> Excuse | None:
        """Return the loss that may have taken the highest message of a queue that is empty in every
        final log.

        None if the message was seen after that loss, or survived it and expired later. If the
        message was seen only while there were two masters, the second master that took it is the
        excuse.
        """
        evidence = self.evidence
        if evidence.stored.ends[queue]:
            return None
        place = pack(queue, evidence.highest_ends[queue] - 1)

        def at_place(rows: Rows, name: str) -> list[int]:
            positions = passes.matching(evidence.keys(rows), (place,))
            return [*map(int, passes.take(rows.column(name), positions))]

        acknowledged = evidence.acknowledged
        acknowledged_ns = at_place(acknowledged, "returned_ns")
        places = [*zip(acknowledged_ns, at_place(acknowledged, "physical_offset"), strict=True)]
        # A member of a group may handle a message long after the loss of it.
        seen_ns = max(
            [0, *acknowledged_ns, *at_place(evidence.rows((Function.GOT,)), "returned_ns")]
        )
        log_end = max(places)[1] + 1 if places else 0
        group = evidence.queues.names[queue].group
        loss = self.losses.loss_between(group, seen_ns, ENDLESS, below=log_end or None)
        return loss or self.losses.split_between(group, seen_ns, seen_ns)


@dataclass(slots=True)
class Findings:
    """Findings that one check has collected so far."""

    anomalies: list[Finding] = field(default_factory=list)
    allowed: list[Example] = field(default_factory=list)
    """Findings that the configuration and the faults allow; each has its excuse."""
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, finding: Finding, *, excuse: Excuse | None = None, **fields: Any) -> None:
        """Add a finding, given as an `Example`, or as a sentence and the other fields of one. With
        an excuse it is an allowed finding."""
        example = Example(finding, **fields) if isinstance(finding, str) else finding
        example.excuse = excuse
        if excuse is None:
            self.anomalies.append(example)
        else:
            self.allowed.append(example)


@dataclass(slots=True)
class Check:
    """A check, or several that share one pass."""

    ids: tuple[str, ...]
    """Ids of the checks, such as `lost-write`."""
    meanings: tuple[str, ...]
    """One sentence for each: it holds if this is so."""
    run: Callable[[Case], list[CheckResult]]
    needs_history: bool = True
    """True if the check needs a complete history."""


def first_sentence(docstring: str) -> str:
    paragraph = " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", paragraph)[0]


def check(
    id: str,
    unit: str,
    *,
    severity: Severity = Severity.SAFETY,
    also: tuple[str, Severity, str] | None = None,
    final: bool = False,
    needs_history: bool = True,
) -> Callable[[Callable[..., int]], Check]:
    """Make a check of a function that takes the case and the `Findings` to add to.

    The first sentence of its docstring is the meaning of the check. `also` is a second check (id,
    severity, meaning) that the same function answers through `Findings` of its own. With `final`
    the check does not run if the final log of a group is missing.
    """
    heads = [(id, severity), *([] if also is None else [also[:2]])]

    def decorate(examine: Callable[..., int]) -> Check:
        def run(case: Case) -> list[CheckResult]:
            collected = [Findings() for _ in heads]
            try:
                if final and (missing := case.evidence.no_final()):
                    raise NotRun(missing)
                examined = examine(case, *collected)
            except (NotRun, NotApplicable) as reason:
                answer = not_run if isinstance(reason, NotRun) else not_applicable
                return [answer(name, unit, str(reason), severity=grade) for name, grade in heads]
            return [
                judged(
                    name,
                    examined,
                    unit,
                    findings.anomalies,
                    findings.note,
                    severity=grade,
                    allowed=findings.allowed,
                    figures=findings.figures,
                )
                for (name, grade), findings in zip(heads, collected, strict=True)
            ]

        meanings = [first_sentence(examine.__doc__ or ""), *([] if also is None else also[2:])]
        return Check(tuple(name for name, _ in heads), tuple(meanings), run, needs_history)

    return decorate
