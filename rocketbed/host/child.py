"""A forked process that works and sends one value back: it may hang, crash or be killed.

The child inherits everything that this process has loaded; its changes in memory are lost. The
child never returns from `Child.__init__`, so that nothing of its parent runs twice.
"""

import math
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, NoReturn, TypeVar

from rocketbed.host.parent_death import tie_to

LOOK_S: Final = 0.005
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_INTERRUPTED: Final = 130

T = TypeVar("T")


class NothingSent(Exception):
    """A child ended without a value; `code` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        super().__init__(f"ended {how}")
        self.code = code


@contextmanager
def signals_blocked() -> Iterator[set[signal.Signals]]:
    """Delay signals that interrupt a command until the end of the block; yields the previous
    mask."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # may raise for a signal of this moment
        yield {signal.Signals(number) for number in mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Child(Generic[T]):
    """A forked process. Create it, ask it and end it within `signals_blocked`.

    `work` is called with a function that sends a value and ends the process at once; its return
    value is sent too. If it raises, the process ends without a value. `mask` are the signals
    blocked before that.
    """

    def __init__(
        self, work: Callable[[Callable[[T], NoReturn]], T], mask: set[signal.Signals]
    ) -> None:
        self._data = bytearray()
        self._is_over = False
        self.pipe, child_end = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads do not matter
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _run_child(parent, child_end, work, mask)
        os.close(child_end)

    def read(self) -> bool:
        """Read what is available; True at EOF."""
        data = os.read(self.pipe, 1 << 20)
        self._data += data
        return not data

    def value(self) -> T:
        """Return the value that was sent, once all was read. Raises `NothingSent`."""
        _, status = os.waitpid(self.pid, 0)
        self._is_over = True
        os.close(self.pipe)
        try:
            value: T = pickle.loads(self._data)
        except Exception:
            raise NothingSent(os.waitstatus_to_exitcode(status)) from None
        return value

    def kill(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended: its pid may then belong to another."""
        if not self._is_over:
            os.kill(self.pid, number)

    def reap(self, until: float) -> None:
        """Wait for its end, and kill it when `time.monotonic` reaches `until`. Blocks."""
        if self._is_over:
            return
        ended = 0
        while not ended and time.monotonic() < until:
            ended, _ = os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0 if ended else LOOK_S)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._is_over = True
        os.close(self.pipe)


def readable(pipes: Iterable[int], seconds: float) -> list[int]:
    """Return the pipes that have data or were closed; by `poll`, since descriptors may be above
    1,023."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    return [pipe for pipe, _ in poll.poll(math.ceil(1000 * max(seconds, 0.0)))]


def _run_child(
    parent: int,
    pipe: int,
    work: Callable[[Callable[[T], NoReturn]], T],
    mask: set[signal.Signals],
) -> NoReturn:
    code = 1
    try:
        if not tie_to(parent):
            os._exit(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _send(work(lambda value: _send(value, pipe)), pipe)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        os._exit(code)


def _send(value: object, pipe: int) -> NoReturn:
    code = 1
    try:
        data = pickle.dumps(value)
        with os.fdopen(pipe, "wb") as file:
            file.write(data)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    finally:
        os._exit(code)
