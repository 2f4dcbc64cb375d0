"""The score: how many planted bugs the testbed finds with `soak-swarm` alone, how fast, and whether
it is silent where there is nothing to find (chaos.md 6.4)."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Final

from rocketbed.chaos.plan.marks import MARKS
from rocketbed.chaos.search.runner import Outcome
from rocketbed.chaos.search.shrink import UNSHORTENED
from tests.mutation.planted.catalogue import unshown

HALF_IDS: Final = UNSHORTENED
"""A mutant of another column that only ends a node or stalls counts one half."""
SHARE_MIN: Final = 2 / 3
"""Share of the repetitions that must find a mutant."""


@dataclass(slots=True, kw_only=True)
class Hunt:
    """The search for one mutant, and what else was found on the way."""

    found_ids: tuple[str, ...] = ()
    """Ids of its column that found it."""
    outcome: Outcome | None = None
    """The run that found it."""
    runs: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    other_findings: "Counter[str]" = field(default_factory=Counter)
    """Runs by finding that is not in the column; for the node and the controls all findings."""
    noisy: list[str] = field(default_factory=list)
    """What was found where nothing should be, each with its seed."""
    points: dict[str, None] = field(default_factory=dict)
    """Marks and events that were reached."""


@dataclass(slots=True, kw_only=True)
class Row:
    """Result of one mutant, of a control, or of the unchanged node."""

    identity: str
    title: str
    hunts: list[Hunt] = field(default_factory=list)
    column: tuple[str, ...] = ()
    shrunk_steps: int | None = None
    """Steps of the plan that was shrunk, of the first repetition that found it."""

    @property
    def finds(self) -> list[Hunt]:
        return [one for one in self.hunts if one.found_ids]

    @property
    def points(self) -> float:
        """1 found, 0.5 when it only ended a node or stalled, 0 survived."""
        if self.hunts and len(self.finds) >= SHARE_MIN * len(self.hunts):
            return 1.0
        sightings = [
            one
            for one in self.hunts
            if one.found_ids or not HALF_IDS.isdisjoint(one.other_findings)
        ]
        return 0.5 if self.hunts and len(sightings) >= SHARE_MIN * len(self.hunts) else 0.0

    def as_row(self) -> dict[str, Any]:
        return {
            "id": self.identity,
            "title": self.title,
            "points": self.points if self.column else None,
            "found": len(self.finds),
            "repetitions": len(self.hunts),
            "by": sorted({name for one in self.finds for name in one.found_ids}),
            "seeds": [one.outcome.plan.seed for one in self.hunts if one.outcome is not None],
            "simulated_s": [round(one.simulated_s, 1) for one in self.hunts],
            "cpu_s": [round(one.cpu_s, 1) for one in self.hunts],
            "runs": sum(one.runs for one in self.hunts),
            "other": [text for one in self.hunts for text in one.noisy],
            "shrunk_steps": self.shrunk_steps,
        }


@dataclass(slots=True)
class Score:
    """All rows, and their totals."""

    rows: list[Row]
    """One row per mutant."""
    quiet: list[Row]
    """Rows of the controls and of the unmodified node."""

    @property
    def points(self) -> float:
        return sum(row.points for row in self.rows)

    @property
    def is_full(self) -> bool:
        """True if every mutant was found, and nothing else was."""
        return not self.noise and self.points >= len(self.rows)

    @property
    def noise(self) -> list[str]:
        return [
            f"{row.identity} {text}" for row in self.quiet for h in row.hunts for text in h.noisy
        ]

    @property
    def unhit(self) -> list[str]:
        hunts = [one for row in (*self.rows, *self.quiet) for one in row.hunts]
        reached = {point.partition(" ")[0] for one in hunts for point in one.points}
        return [name for name in MARKS if name not in reached]

    def as_row(self) -> dict[str, Any]:
        finds = [one for row in self.rows for one in row.finds]
        quiet_s = sum(one.simulated_s for row in self.quiet for one in row.hunts)
        shrunk = [row.shrunk_steps for row in self.rows if row.shrunk_steps is not None]
        return {
            "score": self.points,
            "of": len(self.rows),
            "effort_simulated_s": _spread([one.simulated_s for one in finds]),
            "effort_cpu_s": _spread([one.cpu_s for one in finds]),
            "noise": self.noise,
            "quiet_simulated_s": round(quiet_s, 1),
            "shrunk_steps": median(shrunk) if shrunk else None,
            "marks": [len(MARKS) - len(self.unhit), len(MARKS)],
            "unhit": self.unhit,
            "mutants": [row.as_row() for row in self.rows],
            "quiet": [row.as_row() for row in self.quiet],
        }


def row_text(row: Row) -> str:
    result = row.as_row()
    if row.column:
        outcome = {1.0: "found", 0.5: "half", 0.0: "SURVIVED"}[row.points]
        outcome += f" {result['found']}/{result['repetitions']}"
    else:
        outcome = "NOISE" if result["other"] else "silent"
    mean_s = mean(one.simulated_s for one in row.hunts)
    mean_cpu_s = mean(one.cpu_s for one in row.hunts)
    by = ", ".join(result["by"]) or "-"
    times = f"{mean_s:6.0f} s {mean_cpu_s:5.0f} s CPU"
    return f"{row.identity:5} {row.title:36} {outcome:13} {times}  {by}"


def total_lines(score: Score) -> list[str]:
    """Behind the table; the last line is the score."""
    result = score.as_row()
    lines = [f"{one.id:5} {one.title:36} not hunted: {one.unshown}" for one in unshown()]
    if (effort := result["effort_simulated_s"]) is not None:
        cpu = result["effort_cpu_s"]
        lines.append(
            f"effort: mean {effort['mean']:.0f}, p90 {effort['p90']:.0f} simulated seconds;"
            f" mean {cpu['mean']:.0f}, p90 {cpu['p90']:.0f} seconds of CPU"
        )
    if score.quiet:
        seconds = result["quiet_simulated_s"]
        lines.append(f"silence: {len(score.noise)} findings in {seconds:.0f} simulated seconds")
        lines += [f"    {text}" for text in score.noise]
    if result["shrunk_steps"] is not None:
        lines.append(f"shrunk plans: median {result['shrunk_steps']:g} steps")
    hit, declared = result["marks"]
    unhit = f"; never: {', '.join(score.unhit)}" if score.unhit else ""
    lines.append(f"marks reached: {hit} of {declared}{unhit}")
    lines.append(f"score: {score.points:g} of {len(score.rows)}")
    return lines


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return {"mean": round(mean(values), 1), "p90": round(p90, 1)}
