"""The projects under docs/examples, the programs of docs/guides/plugin.md: run as readers would."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.suites import run_pytest, run_suite

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def blocks() -> list[str]:
    """The Python programs of the page that are tests."""
    text = (ROOT / "docs/guides/plugin.md").read_text(encoding="utf-8")
    return [
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "def test" in block
    ]


@pytest.mark.slow
@pytest.mark.ci
def test_the_python_service(tmp_path: Path) -> None:
    place = tmp_path / "service"
    shutil.copytree(EXAMPLES / "python-service", place)
    ran = run_pytest(place, "--rb-seeds", "2")
    assert ran.counts() == {"passed": 6}, ran.text
    ran = run_pytest(place, "--rb-backend", "process", "-k", "master")
    assert ran.counts()["passed"] == 1, ran.text


@pytest.mark.slow
def test_the_web_service(tmp_path: Path) -> None:
    place = tmp_path / "service"
    shutil.copytree(EXAMPLES / "fastapi-service", place)
    ran = run_pytest(place)
    assert ran.counts() == {"passed": 1}, ran.text


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    first, service, plain = blocks()
    ran = run_suite(tmp_path, "--rb-seeds", "2", test_first=first)
    assert ran.counts() == {"passed": 2}, ran.text
    ran = run_suite(tmp_path, "test_first.py", "--rb-backend", "process")
    assert ran.counts() == {"passed": 1}, ran.text
    ran = run_suite(
        tmp_path, "test_service.py", "test_plain.py", test_service=service, test_plain=plain
    )
    assert ran.counts() == {"passed": 2}, ran.text


@pytest.mark.peer
def test_the_java_client(tmp_path: Path) -> None:
    place = tmp_path / "client"
    shutil.copytree(EXAMPLES / "java-client", place)
    ran = run_pytest(place, "--rb-budget", "4m")
    assert ran.counts() == {"passed": 1}, ran.text
