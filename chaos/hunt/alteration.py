"""One way to alter a recorded run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocketbed.chaos.record import RunRecord

Alter = Callable[[Path, RunRecord], bool]
"""Alters a run's directory; whether there was anything to alter."""


@dataclass(frozen=True, slots=True)
class Alteration:
    name: str
    what: str
    alter: Alter
