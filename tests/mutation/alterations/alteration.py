"""A way to alter a recorded run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.chaos.evidence.history import Row, read_history, save_history
from rocketbed.chaos.evidence.record import HISTORY_FILE, RunRecord

BEYOND: Final = 1_000_000
"""More than any value or offset of a run."""
Alter = Callable[[Path, RunRecord], bool]
"""Alters a run's directory; whether there was anything to alter."""


@dataclass(frozen=True, slots=True)
class Alteration:
    name: str
    alteration: str
    alter: Alter


def replace_rows(replace: Callable[[list[Row]], Iterable[Row]], path: Path) -> bool:
    """Have other rows in the history of a run's directory; whether any is another one now."""
    place = path / HISTORY_FILE
    history = read_history(place)
    before = list(history.columns.rows())
    after = list(replace(list(before)))
    place.unlink()
    save_history(place, history, after)
    return after != before
