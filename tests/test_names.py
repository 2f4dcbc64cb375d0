"""Our top-level names are plain words; nobody else in this environment may have taken them."""

import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
NAMES: list[str] = [name.removesuffix(".py") for name in WHEEL["wheel"]["only-include"]]
"""Packages, and the module by which Spark finds the data source."""


@pytest.mark.parametrize("name", NAMES)
def test_only_we_claim_our_names(name: str) -> None:
    others = set(packages_distributions().get(name, ())) - {"rocketbed"}
    assert others == set(), f"`import {name}` may be theirs: pip uninstall {' '.join(others)}"
    assert name not in sys.stdlib_module_names


@pytest.mark.parametrize("name", NAMES)
def test_the_names_lead_here(name: str) -> None:
    module = __import__(name)
    assert module.__file__ is not None
    assert Path(module.__file__) in (ROOT / name / "__init__.py", ROOT / f"{name}.py")
