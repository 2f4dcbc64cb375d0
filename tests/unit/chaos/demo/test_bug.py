"""Lines of `rocketbed demo --bug`."""

from pathlib import Path

from rocketbed.chaos.checks.registry import MEANINGS
from rocketbed.chaos.demo.bug import show


def test_planted_bug_is_described_in_words(tmp_path: Path) -> None:
    lines: list[str] = []
    page = show(tmp_path, lines.append, seed=4)
    assert page is not None
    assert f"    lost-write: {MEANINGS['lost-write']}" in lines
    cause = next(line for line in lines if "acknowledged, lost by the power cut of b1" in line)
    lost = cause.partition(" ")[0]
    assert f'data-head="outside the bound">{lost}</td>' in page.read_text()
    assert max(map(len, lines)) < 200
