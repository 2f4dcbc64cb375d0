"""Tests of this project as runs: what finds a generated mutant where no run of the testbed does."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final
from warnings import catch_warnings

OPTIONS: Final = (
    "-q",
    "-x",
    "-m",
    "not slow and not peer",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    # Its watchdog is a thread, which a fork does not take along; then its options are unknown.
    "-p",
    "no:faulthandler",
    "-o",
    "addopts=--import-mode=importlib",
    "-W",
    "ignore::pytest.PytestConfigWarning",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",  # our plugin was imported long since
)
LAST_LINES: Final = 12
"""Of what was printed, which a failure tells."""


class TestsFailed(Exception):
    """A test of the file did not pass."""


def run_tests(path: Path | str) -> str:
    """Run a file of tests, or one test, in this process. Raises `TestsFailed`."""
    import pytest  # of those who develop this only

    with catch_warnings(action="ignore"):
        # It asks the collector who holds trio's random numbers, and our runs are frozen from it.
        import hypothesis  # noqa: F401

    captured = StringIO()
    with redirect_stdout(captured), redirect_stderr(captured):
        code = pytest.main([*OPTIONS, str(path)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        last = "\n".join(captured.getvalue().splitlines()[-LAST_LINES:])
        raise TestsFailed(f"{path}: {pytest.ExitCode(code).name}\n{last}")
    return str(path)
