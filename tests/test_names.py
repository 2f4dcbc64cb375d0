"""Our top-level names are plain words; nobody else in this environment may have taken them."""

import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"][
    "build"
]["targets"]["wheel"]["packages"]


@pytest.mark.parametrize("name", PACKAGES)
def test_only_we_claim_our_names(name: str) -> None:
    others = set(packages_distributions().get(name, ())) - {"rocketbed"}
    assert others == set(), f"`import {name}` may be theirs: pip uninstall {' '.join(others)}"
    assert name not in sys.stdlib_module_names


@pytest.mark.parametrize("name", PACKAGES)
def test_the_names_lead_here(name: str) -> None:
    module = __import__(name)
    assert module.__file__ is not None
    assert Path(module.__file__).parent == ROOT / name
