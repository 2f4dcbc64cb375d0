"""Every named point in the node's code is in the testbed's list, and the other way round."""

import ast
from fnmatch import fnmatchcase

import pytest

from rocketbed.chaos.plan.marks import MARKS, RUNNING, STARTING, STOPPING
from tests.support.paths import ROOT


def marks_in_code() -> set[str]:
    """Their names, with a star for a part that differs."""
    marks = set()
    for folder in ("node", "replication", "routing", "rocketbed"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "mark"
                    and node.args
                ):
                    name = node.args[0]
                    parts = name.values if isinstance(name, ast.JoinedStr) else [name]
                    if any(isinstance(part, ast.Constant) for part in parts):
                        marks.add("".join(_text(part) for part in parts))
    return marks


def _text(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "*"


def test_the_list_names_what_the_code_passes() -> None:
    patterns = marks_in_code()
    assert {name for name in MARKS if any(fnmatchcase(name, one) for one in patterns)} == set(MARKS)
    assert {one for one in patterns if any(fnmatchcase(name, one) for name in MARKS)} == patterns


@pytest.mark.parametrize("pattern", [*RUNNING, *STARTING, *STOPPING])
def test_every_pattern_matches_a_mark(pattern: str) -> None:
    assert any(fnmatchcase(name, pattern) for name in MARKS)
