"""A task runs the code that planned it, or says that it does not."""

import pickle

import pytest

from rocketbed import __version__
from rocketbed.pipeline import build
from rocketbed.pipeline.build import OtherBuild, Planned, own_build


class Plan(Planned):
    def __init__(self, fields: dict[str, object]) -> None:
        self.fields = fields


def test_a_plan_is_unpacked_by_the_same_build() -> None:
    plan = pickle.loads(pickle.dumps(Plan({"a": 1})))
    assert (type(plan), plan.fields) == (Plan, {"a": 1})


def test_another_build_refuses_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pickle.dumps(Plan({"a": 1}))
    assert own_build().startswith(f"{__version__} (")
    monkeypatch.setattr(build, "own_build", lambda: "0.0.9 (abc)")
    with pytest.raises(OtherBuild, match=r"^\[ROCKETBED_OTHER_BUILD\] \S+ has rocketbed 0.0.9 \(a"):
        pickle.loads(packed)
