"""Tests of this project as runs: what finds a generated mutant where no run of the testbed does."""

import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

ASKED: Final = (
    *("-q", "-x", "-m", "not slow and not peer"),
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    # Its watchdog is a thread, which a fork does not take along; then its options are unknown.
    *("-p", "no:faulthandler", "-o", "addopts=--import-mode=importlib"),
    *("-W", "ignore::pytest.PytestConfigWarning"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # our plugin was imported long since
)


class TestsFailed(Exception):
    """A test of the file did not pass."""


def run_tests(path: Path) -> str:
    """Run a file of tests in this very process; its name. Raises `TestsFailed`."""
    import pytest  # of those who develop this only

    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        code = pytest.main([*ASKED, str(path)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise TestsFailed(f"{path}: {pytest.ExitCode(code).name}")
    return str(path)
