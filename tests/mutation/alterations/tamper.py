"""Alters a recorded run in every known way, and sees which alterations its judge does not notice.

A judge that passes a record from which something was taken would pass a node that takes it. Each
alteration is of what one part of a cluster could get wrong, and is made on a copy of the run.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rocketbed.chaos.checks.judgement import Judgement, RunVerdict, judge_run
from rocketbed.chaos.evidence.record import read_record
from tests.mutation.alterations.tables import ALTERATIONS


@dataclass(frozen=True, slots=True)
class Tampered:
    """Answer of a judge to one alteration."""

    name: str
    alteration: str
    verdict: str
    """`pass`, `anomaly`, ...; `nothing` where the run has nothing of the kind."""
    ids: tuple[str, ...] = ()
    """Checks that found it, or did not run."""

    @property
    def passed(self) -> bool:
        return self.verdict == RunVerdict.PASS


def tamper(run: Path, scratch: Path, only: Iterable[str] | None = None) -> Iterator[Tampered]:
    """Judge a copy of a run, in `scratch`, after each alteration, or each of `only`.

    Raises `OSError`, `RecordError`.
    """
    record = read_record(run)
    names = {alteration.name for alteration in ALTERATIONS} if only is None else set(only)
    for alteration in ALTERATIONS:
        if alteration.name not in names:
            continue
        copy = scratch / alteration.name
        shutil.copytree(run, copy)
        try:
            if not alteration.alter(copy, record):
                yield Tampered(alteration.name, alteration.alteration, "nothing")
                continue
            judgement = judge_run(copy)
            yield Tampered(
                alteration.name, alteration.alteration, str(judgement.verdict), _ids(judgement)
            )
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def _ids(judgement: Judgement) -> tuple[str, ...]:
    not_run = [row["id"] for row in judgement.as_row()["not_run"]]
    return (*judgement.finding_ids, *(f"{one} did not run" for one in not_run))
