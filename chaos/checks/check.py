"""What a check is: a function that notes what it finds and returns how many things it looked at.

    @check("A13 vanished read", "messages read", final=True)
    def vanished_reads(case: Case, found: Findings) -> int: ...

It raises `NotRun` when it lacks what it needs, `NotApplicable` when the run by its nature has
nothing for it. The order of all checks stands in `registry`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence, Rows
from rocketbed.chaos.checks.keys import pack
from rocketbed.chaos.checks.loss_bound import Losses
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
    """A check could not look; the message says what it lacks."""


class NotApplicable(Exception):
    """What a run did has nothing for a check; the message says why."""


@dataclass
class Case:
    """The evidence, and what is worked out from it for several checks."""

    evidence: Evidence
    recoveries: int = 0
    """Images that are booted twice (S14)."""

    @cached_property
    def losses(self) -> Losses:
        return Losses(self.evidence)

    def some(self, functions: Iterable[Function], *outcomes: Outcome, without: str) -> Rows:
        """Rows as of `Evidence.rows`. Raises `NotApplicable`, with the reason, without any."""
        rows = self.evidence.rows(functions, *outcomes)
        if not len(rows):
            raise NotApplicable(without)
        return rows

    def need_index(self) -> None:
        """Raises `NotApplicable` where nodes kept no index of keys."""
        if not self.evidence.record.indexed:
            raise NotApplicable(NO_INDEX)

    def lost_end(self, queue: int) -> Excuse | None:
        """What may have lost the furthest message of a queue of which no log has any: not where it
        was seen afterwards, or was kept then, so that it expired (seed 1390026). Or the second
        master that took it, where it was seen in its time alone (seed 1818008)."""
        evidence = self.evidence
        if evidence.stored.ends[queue]:
            return None
        place = pack(queue, evidence.ends_ever[queue] - 1)

        def at_place(rows: Rows, name: str) -> list[int]:
            positions = passes.where(evidence.keys(rows), (place,))
            return [*map(int, passes.take(rows.column(name), positions))]

        told = evidence.acknowledged
        told_ns = at_place(told, "returned_ns")
        places = [*zip(told_ns, at_place(told, "physical_offset"), strict=True)]
        # A group's member may handle what it got long after a loss.
        seen_ns = max([0, *told_ns, *at_place(evidence.rows((Function.GOT,)), "returned_ns")])
        behind = max(places)[1] + 1 if places else 0
        group = evidence.queues.names[queue].group
        lost = self.losses.loss_between(group, seen_ns, ENDLESS, behind=behind or None)
        return lost or self.losses.split_between(group, seen_ns, seen_ns)


@dataclass(slots=True)
class Findings:
    """What one check has found so far."""

    found: list[Finding] = field(default_factory=list)
    allowed: list[Example] = field(default_factory=list)
    """What the configuration and the faults allow; each says what allows it."""
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, finding: Finding, *, excuse: Excuse | None = None, **fields: Any) -> None:
        """Note a finding, or a sentence and the other fields of an `Example`; with an excuse it is
        an allowed one."""
        example = Example(finding, **fields) if isinstance(finding, str) else finding
        example.excuse = excuse
        if excuse is None:
            self.found.append(example)
        else:
            self.allowed.append(example)


@dataclass(slots=True)
class Check:
    """One check, or several that are made together."""

    titles: tuple[str, ...]
    run: Callable[[Case], list[CheckResult]]
    needs_history: bool = True
    """Whether half a history is no evidence for it."""

    @property
    def ids(self) -> set[str]:
        """`A1`, ..."""
        return {title.partition(" ")[0] for title in self.titles}


def check(
    title: str,
    unit: str,
    *,
    severity: Severity = Severity.SAFETY,
    also: tuple[str, Severity] | None = None,
    final: bool = False,
    needs_history: bool = True,
) -> Callable[[Callable[..., int]], Check]:
    """Make a check of a function; it gets the case, and `Findings` to add to.

    `also` is a second title with its severity that the function answers on the way, by `Findings`
    of its own. With `final` it does not run where the final log of a group is missing.
    """
    heads = [(title, severity), *([] if also is None else [also])]

    def made(look: Callable[..., int]) -> Check:
        def run(case: Case) -> list[CheckResult]:
            found = [Findings() for _ in heads]
            try:
                if final and (missing := case.evidence.no_final()):
                    raise NotRun(missing)
                examined = look(case, *found)
            except (NotRun, NotApplicable) as why:
                answer = not_run if isinstance(why, NotRun) else not_applicable
                return [answer(name, unit, str(why), severity=grade) for name, grade in heads]
            return [
                judged(
                    name,
                    examined,
                    unit,
                    one.found,
                    one.note,
                    severity=grade,
                    allowed=one.allowed,
                    figures=one.figures,
                )
                for (name, grade), one in zip(heads, found, strict=True)
            ]

        run.__doc__ = look.__doc__
        return Check(tuple(name for name, _ in heads), run, needs_history)

    return made
