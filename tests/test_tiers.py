"""Every file of tests has a part in what .ci/run runs, and no test draws its own seed."""

import ast
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
FILES: Final = sorted(TESTS.rglob("test_*.py"))
DRAWS: Final = ("SystemRandom(", "time_ns() %")


def runs_in_ci(source: str, *, beside_peer: bool) -> bool:
    """True if a test of the file is neither slow nor beside a peer, or has the mark `ci`."""
    tree = ast.parse(source)
    marks = [ast.unparse(node) for node in tree.body if is_marks(node)]
    is_slow = beside_peer or any("mark.slow" in mark for mark in marks)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("test_"):
            continue
        decorators = [ast.unparse(one) for one in node.decorator_list]
        if "pytest.mark.ci" in decorators:
            return True
        if not is_slow and not {"pytest.mark.slow", "pytest.mark.peer"}.intersection(decorators):
            return True
    return False


def is_marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(TESTS)) for path in FILES])
def test_each_file_has_a_part_in_ci(path: Path) -> None:
    beside_peer = path.is_relative_to(TESTS / "peer")
    assert runs_in_ci(path.read_text(), beside_peer=beside_peer), "mark a test with pytest.mark.ci"


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("def test_a(): ...\n", True),
        ("@pytest.mark.slow\ndef test_a(): ...\n", False),
        ("@pytest.mark.slow\n@pytest.mark.ci\ndef test_a(): ...\n", True),
        ("pytestmark = pytest.mark.slow\ndef test_a(): ...\n", False),
        ("def helper(): ...\n", False),
    ],
)
def test_marks_decide(source: str, answer: bool) -> None:
    assert runs_in_ci(source, beside_peer=False) is answer


def test_no_test_draws_its_own_seed() -> None:
    """A red build is then the fault of its commit, and `git bisect` works."""
    helpers = [*TESTS.glob("support/**/*.py"), *TESTS.glob("model/*.py")]
    files = [path for path in (*FILES, *helpers) if path.name != Path(__file__).name]
    sources = {path: path.read_text() for path in files}
    assert [str(path) for path, text in sources.items() if any(d in text for d in DRAWS)] == []
