"""Tests import no other test: what they share lives in folders of helpers."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
HELPERS = ("support/", "mutation/", "model/", "fuzz.py")
"""Folders with modules of their own beside or instead of tests."""


def imports_of_tests(source: str) -> list[str]:
    """Modules named `test_...` that a source imports, wherever the import stands."""
    places = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            places += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            places += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return [
        name
        for name in places
        if name.startswith((".", "tests.")) and name.rpartition(".")[2].startswith("test_")
    ]


def test_no_file_imports_a_test() -> None:
    assert len(FILES) > 250
    places_found = {
        str(file): names for file in FILES if (names := imports_of_tests(file.read_text()))
    }
    assert places_found == {}, "what they share belongs into tests/support"


def test_helpers_live_in_support() -> None:
    remaining = [
        str(file.relative_to(TESTS))
        for file in FILES
        if not file.name.startswith("test_") and file.name not in ("conftest.py", "__init__.py")
    ]
    assert [name for name in remaining if not name.startswith(HELPERS)] == []
    in_support = [file.name for file in (TESTS / "support").rglob("test_*.py")]
    assert in_support == [], "pytest would not be asked to run them"


@pytest.mark.parametrize(
    ("source", "imports_found"),
    [
        ("def f():\n    from tests.sim.test_load import x\n", ["tests.sim.test_load"]),
        ("from tests.sim import test_load\n", ["tests.sim.test_load"]),
        ("import tests.sim.test_load as load\n", ["tests.sim.test_load"]),
        ("from .test_load import x\n", [".test_load"]),
        ("from tests.support.stores import test_store\n", ["tests.support.stores.test_store"]),
        ("from tests.support import stores\nimport pytest\n", []),
    ],
)
def test_an_import_is_seen_in_every_form(source: str, imports_found: list[str]) -> None:
    assert imports_of_tests(source) == imports_found
