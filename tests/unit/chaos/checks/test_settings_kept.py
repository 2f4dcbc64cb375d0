"""Nodes report the settings that were changed under load."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketbed.chaos.checks.result import Verdict
from tests.support.run_maker import MS, SECOND, RunMaker, results

KEY = "flushIntervalCommitLog"


def showing(run: RunMaker, at_s: float, value: str) -> None:
    at_ns = int(at_s * SECOND)
    run.event(at_ns, "b1", "setting_shown", key=KEY, value=value, began_ns=at_ns - 10 * MS)


def setting(run: RunMaker, at_s: float, value: str, *, answered_s: float = 0) -> None:
    at_ns = int(at_s * SECOND)
    run.event(at_ns, "b1", "setting_asked", key=KEY, value=value, began_ns=at_ns)
    if answered_s:
        time_ns = int(answered_s * SECOND)
        run.event(time_ns, "b1", "setting_changed", key=KEY, value=value)


def started(run: RunMaker, at_s: float) -> None:
    run.event(int(at_s * SECOND), "b1", "start", role="master", id=0)


def accepting(run: RunMaker) -> None:
    setting(run, 20, "20", answered_s=20.1)
    showing(run, 30, "20")


def not_taken(run: RunMaker) -> None:
    setting(run, 20, "20", answered_s=20.1)
    showing(run, 30, "500")


def gone_with_a_start(run: RunMaker) -> None:
    setting(run, 20, "20", answered_s=20.1)
    started(run, 25)
    showing(run, 30, "500")


def there_after_a_start(run: RunMaker) -> None:
    setting(run, 20, "20", answered_s=20.1)
    started(run, 25)
    showing(run, 30, "20")


def not_answered(run: RunMaker) -> None:
    setting(run, 20, "20")
    showing(run, 30, "20")


def not_answered_nor_taken(run: RunMaker) -> None:
    setting(run, 20, "20")
    showing(run, 30, "500")
    showing(run, 50, "500")


def another_one(run: RunMaker) -> None:
    setting(run, 20, "20")
    showing(run, 30, "200")


def back_by_itself(run: RunMaker) -> None:
    setting(run, 20, "20", answered_s=20.1)
    showing(run, 30, "20")
    showing(run, 60, "500")


def answered_by_the_one_before(run: RunMaker) -> None:
    setting(run, 20, "20")
    started(run, 20.05)
    run.event(20 * SECOND + 100 * MS, "b1", "setting_changed", key=KEY, value="20")
    showing(run, 30, "500")


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (accepting, 0),
        (not_taken, 1),
        (gone_with_a_start, 0),
        (there_after_a_start, 1),
        (not_answered, 0),
        (not_answered_nor_taken, 0),
        (another_one, 1),
        (back_by_itself, 1),
        (answered_by_the_one_before, 0),
    ],
    ids=lambda case: getattr(case, "__name__", str(case)),
)
def test_node_reports_its_changed_settings(
    tmp_path: Path, change: Callable[[RunMaker], None], count: int
) -> None:
    run = RunMaker(tmp_path / "run")
    started(run, 1)
    showing(run, 19, "500")
    change(run)
    assert results(run.judge(only=["settings-kept"]))["settings-kept"].found == count


def test_initial_settings_do_not_follow_from_later_ones(tmp_path: Path) -> None:
    """The first query began in the previous process."""
    run = RunMaker(tmp_path / "run")
    started(run, 19)
    showing(run, 19.005, "500")
    setting(run, 20, "20", answered_s=20.1)
    showing(run, 21, "20")
    started(run, 25)
    showing(run, 30, "500")
    assert results(run.judge(only=["settings-kept"]))["settings-kept"].found == 0


def test_nothing_was_changed(tmp_path: Path) -> None:
    judgement = RunMaker(tmp_path / "run").judge(only=["settings-kept"])
    assert judgement.result("settings-kept").verdict is Verdict.NOT_APPLICABLE
