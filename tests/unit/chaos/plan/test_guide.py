"""The scenario of docs/guides/failover.md, in both forms."""

import re
from pathlib import Path

import pytest

from rocketbed.chaos.plan.library import load_scenario
from tests.support.paths import ROOT

PAGE = ROOT / "docs/guides/failover.md"


@pytest.mark.parametrize("backend", ["sim", "process"])
def test_both_forms_make_the_same_plan(tmp_path: Path, backend: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    plans = []
    for language, suffix in (("toml", "toml"), ("python", "py")):
        (example,) = re.findall(rf"```{language}\n(.*?)```", text, re.S)
        path = tmp_path / f"my.{suffix}"
        path.write_text(example, encoding="utf-8")
        plans.append(load_scenario(str(path)).plan(1, backend))
    assert plans[0] == plans[1]
