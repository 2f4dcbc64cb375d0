"""An interrupt is an interrupt, whatever error it comes to light as."""

import os
import signal
from pathlib import Path

import pytest

from rocketbed.cli.interrupts import Interruptible, was_interrupted
from rocketbed.cli.main import main
from rocketbed.cluster import lifecycle
from rocketbed.cluster.cluster import LocalCluster


def test_a_signal_ends_the_inside() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt), Interruptible():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is before


def test_cleaning_up_that_fails_hides_no_interrupt() -> None:
    def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.close(1 << 20)

    with pytest.raises(KeyboardInterrupt) as caught, Interruptible():
        interrupted()
    assert isinstance(caught.value.__cause__, OSError)


def test_interrupted_start_of_a_cluster_says_that_members_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start(_cluster: LocalCluster) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "start_missing", start)
    assert main(["cluster", "up", "--dir", f"{tmp_path}/bed", "--port", "0"]) == 130
    error = capsys.readouterr().err
    assert f"`rocketbed cluster down --dir {tmp_path}/bed` stops it" in error


def test_other_errors_stay_what_they_are() -> None:
    error = OSError("full")
    with pytest.raises(OSError, match="full"), Interruptible():
        raise error
    assert not was_interrupted(error)
    error.__context__ = error.__cause__ = ValueError()
    error.__cause__.__context__ = error
    assert not was_interrupted(error)
