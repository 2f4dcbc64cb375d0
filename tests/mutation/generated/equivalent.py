"""Generated mutants that somebody looked at and that change nothing anyone could promise."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PATH: Final = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    key: str
    where: str
    """Module and function, for the reader."""
    change: str
    reason: str


def load_equivalents(path: Path = PATH) -> dict[str, Equivalent]:
    """By key. Raises `TypeError` for a row that lacks something."""
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    return {row["key"]: Equivalent(**row) for row in rows}
