"""The page of a run."""

from pathlib import Path

from chaos.checkers.judgement import Judgement
from chaos.record import RunRecord


def write_report(directory: Path, judgement: Judgement, record: RunRecord) -> Path:
    """Write `index.html` into a run's directory."""
    page = directory / "index.html"
    page.write_text("", encoding="utf-8")
    return page
