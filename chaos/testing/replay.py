"""Replay files of tests: a failure with all that is needed to have it again (`.rbx`, JSON).

Unlike a scenario's file it holds no steps to be taken, since those are the body's; it says which of
them are left out, and what the storms are, in place of what the seed would draw. The cluster is the
one of the failure, whatever the marks say by now.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rocketbed import __version__
from rocketbed.chaos.hunt.replay import KIND as SCENARIO_KIND
from rocketbed.chaos.hunt.replay import versions
from rocketbed.chaos.scenario.errors import ScenarioError
from rocketbed.chaos.scenario.form import plan_from_row, plan_to_row
from rocketbed.chaos.scenario.plan import Plan
from rocketbed.chaos.testing.order import Order, Told
from rocketbed.chaos.testing.stage import Choice

FORMAT: Final = 1
KIND: Final = "rocketbed test replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReplay:
    """A failure of a test that can be had again."""

    __test__ = False

    node: str
    """pytest's id of the test, with backend and seed."""
    backend: str
    seed: int
    plan: Plan
    choice: Choice
    signature: str
    """What makes a failure the same: see `chaos.testing.perform.signature`."""
    digest: str
    """Of the simulation; empty elsewhere."""
    done: tuple[str, ...]
    """What was done, for a reader."""
    versions: dict[str, str] = field(default_factory=dict)

    def order(self, order: Order) -> Order:
        """An order for the same test, made into this one."""
        return replace(
            order, backend=self.backend, seed=self.seed, plan=self.plan, choice=self.choice
        )

    def compared(self, told: Told) -> str:
        """How a run of it compares with the failure, in words."""
        if told.kind == "passed":
            return f"the replay passed; the file has {self.signature}"
        if told.signature != self.signature:
            return f"the replay failed in another way: {told.signature}, not {self.signature}"
        if not self.digest:
            return "the replay failed in the same way"
        if told.digest == self.digest:
            return f"the replay is the same run to the last event ({self.digest})"
        changed = [
            f"{name} was {value} and is {versions().get(name)}"
            for name, value in self.versions.items()
            if versions().get(name) != value
        ]
        why = (
            f" ({'; '.join(changed)})" if changed else ", and so the test is not the same any more"
        )
        return f"the replay failed in the same way, by another course of events{why}"


def make_replay(node: str, order: Order, told: Told) -> TestReplay:
    """Of one run as it was."""
    return TestReplay(
        node=node,
        backend=order.backend,
        seed=order.seed,
        plan=order.plan,
        choice=Choice(left_out=order.choice.left_out, storms=dict(told.storms)),
        signature=told.signature,
        digest=told.digest,
        done=tuple(told.done),
        versions=versions(),
    )


def save_test_replay(made: TestReplay, path: Path) -> None:
    """Write a file. Raises `OSError`."""
    row = {
        "kind": KIND,
        "format": FORMAT,
        "test": made.node,
        "backend": made.backend,
        "seed": made.seed,
        "signature": made.signature,
        "digest": made.digest,
        "done": list(made.done),
        "left_out": sorted(made.choice.left_out),
        "storms": {str(number): list(texts) for number, texts in made.choice.storms.items()},
        "plan": plan_to_row(made.plan),
        "versions": made.versions,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def load_test_replay(path: Path) -> TestReplay:
    """Read a file. Raises `ScenarioError` for what is none, another version's or damaged."""
    try:
        row: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: no replay file can be read there: {error}") from None
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind == SCENARIO_KIND:
        raise ScenarioError(
            f"{path}: this is the file of a scenario, not of a test: rocketbed chaos replay {path}"
        )
    if kind != KIND:
        raise ScenarioError(f"{path}: this is no replay file of a test with rocketbed")
    if row.get("format") != FORMAT:
        raise ScenarioError(
            f"{path}: written in format {row.get('format')}, and this rocketbed {__version__}"
            f" reads format {FORMAT}: replay it with the version that wrote it"
        )
    try:
        storms = {int(number): tuple(texts) for number, texts in row["storms"].items()}
        return TestReplay(
            node=row["test"],
            backend=row["backend"],
            seed=row["seed"],
            plan=plan_from_row(row["plan"]),
            choice=Choice(left_out=frozenset(row["left_out"]), storms=storms),
            signature=row["signature"],
            digest=row["digest"],
            done=tuple(row["done"]),
            versions=row["versions"],
        )
    except (ScenarioError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ScenarioError(f"{path}: the replay file is damaged: {error}") from None
