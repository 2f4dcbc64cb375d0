"""The wheel's top-level names are ours alone, and no folder is imported by its bare name."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
NAMES: list[str] = [name.removesuffix(".py") for name in WHEEL["wheel"]["only-include"]]
"""The package, and the module by which Spark finds the data source."""
LINKED = ("chaos", "node", "pipeline", "replication", "routing")
"""Folders of the repository that are imported as `rocketbed.<folder>`."""
IN_TEXT = re.compile(r"^from (\w+(?:\.\w+)*) import ", re.MULTILINE)
"""An import of a program that a test writes."""


@pytest.mark.parametrize("name", NAMES)
def test_only_we_claim_our_names(name: str) -> None:
    claimants = set(packages_distributions().get(name, ())) - {"rocketbed"}
    assert claimants == set(), f"`import {name}` may be theirs: pip uninstall {' '.join(claimants)}"
    assert name not in sys.stdlib_module_names


@pytest.mark.parametrize("name", NAMES)
def test_the_names_lead_here(name: str) -> None:
    module = __import__(name)
    assert module.__file__ is not None
    assert Path(module.__file__) in (ROOT / name / "__init__.py", ROOT / f"{name}.py")


@pytest.mark.parametrize("name", LINKED)
def test_a_folder_is_linked_into_the_package(name: str) -> None:
    assert (ROOT / "rocketbed" / name).readlink() == Path("..") / name


def bare_imports(source: str) -> list[str]:
    """Imports of a linked folder by its bare name: they would make each class twice."""
    imports = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [str(node.module)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = IN_TEXT.findall(node.value)
        imports += [name for name in names if name.partition(".")[0] in LINKED]
    return imports


def test_nothing_imports_a_folder_by_its_bare_name() -> None:
    folders = ("rocketbed", "bench", "tests", "tools", *LINKED)
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 700
    bare = {str(file): names for file in files if (names := bare_imports(file.read_text()))}
    assert bare == {}


def test_a_bare_import_is_seen_wherever_it_stands() -> None:
    assert bare_imports("def f():\n    from node.config import x\n") == ["node.config"]
    assert bare_imports("import chaos.sim\n") == ["chaos.sim"]
    assert bare_imports("x = 'from chaos.sim import y'\n") == ["chaos.sim"]
    assert bare_imports("from rocketbed.node import config\nfrom . import node\n") == []
