"""Every named point in the node's code is in the testbed's list, and the other way round."""

import ast
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from rocketbed.chaos.scenario.marks import MARKS, RUNNING, STARTING, STOPPING

ROOT = Path(__file__).parents[2]


def marks_in_code() -> set[str]:
    found = set()
    for folder in ("node", "replication", "routing", "rocketbed"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "mark"
                    and node.args
                    and isinstance(node.args[0], ast.Constant)
                ):
                    found.add(str(node.args[0].value))
    return found


def test_the_list_names_what_the_code_passes() -> None:
    assert marks_in_code() == set(MARKS)


@pytest.mark.parametrize("pattern", [*RUNNING, *STARTING, *STOPPING])
def test_every_pattern_matches_a_mark(pattern: str) -> None:
    assert any(fnmatchcase(name, pattern) for name in MARKS)
