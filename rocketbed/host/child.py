"""A forked process that works and sends one value back: it may hang, crash or be killed.

The child inherits all that this process has loaded; what it changes in memory goes with it. Nothing
leaves `Child.__init__` in the child, so that nothing of its parent runs twice.
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
    """A child ended without a value; `code` is a process's, negative for a signal."""

    def __init__(self, code: int) -> None:
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        super().__init__(f"ended {how}")
        self.code = code


@contextmanager
def held() -> Iterator[set[signal.Signals]]:
    """Signals that interrupt a command wait until this is over; gives the mask from before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # may raise for one that came just now
        yield {signal.Signals(number) for number in mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Child(Generic[T]):
    """One forked process. Made, asked and ended while signals are `held`.

    `work` is given what sends a value and ends the process at once; what it returns is sent too.
    What it raises ends the process without a value. `mask` are the signals blocked before `held`.
    """

    def __init__(
        self, work: Callable[[Callable[[T], NoReturn]], T], mask: set[signal.Signals]
    ) -> None:
        self._data = bytearray()
        self._is_over = False
        self.pipe, theirs = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of others do not matter
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _live(parent, theirs, work, mask)
        os.close(theirs)

    def read(self) -> bool:
        """Read what is available; True at EOF."""
        data = os.read(self.pipe, 1 << 20)
        self._data += data
        return not data

    def value(self) -> T:
        """What it sent, once all was read. Raises `NothingSent`."""
        _, status = os.waitpid(self.pid, 0)
        self._is_over = True
        os.close(self.pipe)
        try:
            value: T = pickle.loads(self._data)
        except Exception:
            raise NothingSent(os.waitstatus_to_exitcode(status)) from None
        return value

    def kill(self, number: signal.Signals) -> None:
        """Send a signal, unless it is gone: its pid may be somebody else's then."""
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
    """Pipes that have something or were closed; `poll`, since descriptors may be above 1,023."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    return [pipe for pipe, _ in poll.poll(math.ceil(1000 * max(seconds, 0.0)))]


def _live(
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
