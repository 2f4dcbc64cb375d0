"""Report of a replay about the findings that it should reproduce."""

import pytest

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import Example, judged
from rocketbed.chaos.plan.plan import Plan, Shape
from rocketbed.chaos.search.replay import Replayed
from rocketbed.chaos.search.runner import Outcome


def replayed(expected_ids: str, actual_ids: str) -> Replayed:
    results = [judged(name, 1, "things", [Example("gone")]) for name in actual_ids.split()]
    plan = Plan(name="small", seed=1, shape=Shape(brokers=1))
    outcome = Outcome(
        plan=plan, backend="process", judgement=Judgement(record=None, results=results)
    )
    return Replayed(outcome=outcome, same_digest=None, expected=frozenset(expected_ids.split()))


@pytest.mark.parametrize(
    ("expected_ids", "actual_ids", "comparison", "is_same"),
    [
        (
            "unseen-message moved-write",
            "moved-write unseen-message duplicate",
            "moved-write, unseen-message: found again",
            True,
        ),
        (
            "unseen-message moved-write duplicate",
            "unseen-message",
            "unseen-message: found again; duplicate, moved-write: not found this time",
            False,
        ),
        ("unseen-message", "", "unseen-message: not found this time", False),
        ("", "", "no findings the first time, nothing this time", True),
        ("", "lost-write", "no findings the first time, lost-write this time", True),
    ],
)
def test_reproduced_findings_are_named(
    expected_ids: str, actual_ids: str, comparison: str, is_same: bool
) -> None:
    run = replayed(expected_ids, actual_ids)
    assert (run.comparison(), run.same_finding) == (comparison, is_same)
