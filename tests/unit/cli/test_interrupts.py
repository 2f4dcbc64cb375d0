"""An interrupt is an interrupt, whatever error it comes to light as."""

import os
import signal

import pytest

from rocketbed.cli.interrupts import Interruptible, was_interrupted


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


def test_other_errors_stay_what_they_are() -> None:
    error = OSError("full")
    with pytest.raises(OSError, match="full"), Interruptible():
        raise error
    assert not was_interrupted(error)
    error.__context__ = error.__cause__ = ValueError()
    error.__cause__.__context__ = error
    assert not was_interrupted(error)
