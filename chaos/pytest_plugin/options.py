"""The plugin's options, read once and checked before anything runs."""

from pathlib import Path
from typing import Final

import pytest

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.units import parse_duration
from rocketbed.chaos.pytest_plugin.failure import load_test_replay
from rocketbed.chaos.pytest_plugin.wishes import check_count, read_backends
from rocketbed.chaos.search.replay import Replay, TestPart

REPLAY: Final = pytest.StashKey[tuple[Replay, TestPart]]()


def check_options(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` for an unusable option."""
    try:
        if (text := config.getoption("rb_backend")) is not None:
            read_backends(text)
        if (count := config.getoption("rb_seeds")) is not None:
            check_count(f"--rb-seeds {count}", count)
        budget_s(config)
        replay_of(config)
    except ScenarioError as error:
        raise pytest.UsageError(str(error)) from None


def budget_s(config: pytest.Config) -> float:
    """Return real seconds of one run. Raises `ScenarioError`."""
    text = str(config.getoption("rb_budget"))
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ScenarioError(f"--rb-budget: {error}") from None
    if seconds <= 0:
        raise ScenarioError(f"--rb-budget {text}: must be positive")
    return seconds


def replay_of(config: pytest.Config) -> tuple[Replay, TestPart] | None:
    """Return the file of `--rb-replay`. Raises `ScenarioError`."""
    text = config.getoption("rb_replay")
    if text is None:
        return None
    if REPLAY not in config.stash:
        config.stash[REPLAY] = load_test_replay(Path(text))
    return config.stash[REPLAY]


def report_directory(config: pytest.Config) -> Path:
    option = config.getoption("rb_report")
    return config.rootpath / ".rocketbed" if option is None else Path(option).absolute()
