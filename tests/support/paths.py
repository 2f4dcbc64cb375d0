"""Folders of the repository, wherever a test lies."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FIXTURES: Final = ROOT / "tests" / "fixtures"
CLEAN_STORE: Final = FIXTURES / "rocketmq-store-clean.tar.gz"
"""Store of a RocketMQ that was stopped in order."""
KILLED_STORE: Final = FIXTURES / "rocketmq-store-killed.tar.gz"
"""Store of a RocketMQ that was killed."""
