"""The version: one number, in the package, its metadata and the command line."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from rocketbed import __version__
from rocketbed.cli.main import main

ROOT = Path(__file__).parents[2]


def test_the_build_takes_the_version_from_the_package() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in metadata["project"]
    assert "version" in metadata["project"]["dynamic"]
    assert metadata["tool"]["hatch"]["version"] == {"path": "rocketbed/__init__.py"}
    assert version("rocketbed") == __version__


def test_the_command_line_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rocketbed {__version__}\n"


def test_the_changelog_has_a_section_for_it() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {__version__} - " in changelog
