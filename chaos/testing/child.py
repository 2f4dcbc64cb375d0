"""One run of a test in a forked process, which may hang, crash or be killed without harm.

The child inherits all that pytest has loaded and the values of the test's fixtures; what it changes
in memory goes with it. It ends in its time or is ended: it says itself where it hung, and is killed
if it cannot.
"""

import faulthandler
import math
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import IO, Final, NoReturn

from rocketbed.chaos.host.tied import tie_to
from rocketbed.chaos.hunt.runner import EXIT_INTERRUPTED, explain, held, reap
from rocketbed.chaos.testing.order import Told

GRACE_S: Final = 20.0
"""What a run that is over its budget, or interrupted, may take to clean up before it is killed."""


Work = Callable[[Callable[[Told], NoReturn]], Told]
"""Is given what ends the process at once, with what it has to tell."""


def run_forked(work: Work, *, budget_s: float, simulated: bool) -> Told:
    """Do the work in a fork of this process; what it tells, or why it told nothing.

    Interrupted, it ends the child first. `work` minds the budget itself; this only makes sure.
    """
    with tempfile.TemporaryFile() as stacks:
        with held() as mask:
            child = _Child(work, stacks, budget_s, mask)
        try:
            return child.wait(time.monotonic() + budget_s + GRACE_S)
        except BaseException:
            with held():
                child.end(signal.SIGKILL if simulated else signal.SIGINT)
            raise


class _Child:
    def __init__(
        self,
        work: Work,
        stacks: IO[bytes],
        budget_s: float,
        mask: set[signal.Signals],
    ) -> None:
        self._stacks = stacks
        self._is_gone = False
        self._budget_s = budget_s
        self._pipe, theirs = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of others do not matter
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            _child_main(parent, theirs, work, stacks, budget_s, mask)
        os.close(theirs)

    def wait(self, deadline: float) -> Told:
        """What it tells; after the deadline it is killed."""
        data = bytearray()
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                self.end(signal.SIGKILL)
                return self._overdue()
            if not poll.poll(math.ceil(1000 * left)):
                continue
            part = os.read(self._pipe, 1 << 20)
            if not part:
                break
            data += part
        _, status = os.waitpid(self._pid, 0)
        self._is_gone = True
        os.close(self._pipe)
        try:
            told: Told = pickle.loads(data)
        except Exception:
            code = os.waitstatus_to_exitcode(status)
            if code == EXIT_INTERRUPTED:
                raise KeyboardInterrupt from None
            if code < 0 and time.monotonic() > deadline - GRACE_S:
                return self._overdue()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            told = Told(kind="broken", reason=f"the process of the test ended {how}")
        return told

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and wait until it is gone; SIGKILL when that takes too long."""
        if self._is_gone:
            return
        os.kill(self._pid, number)
        reap(self._pid, time.monotonic() + GRACE_S)
        self._is_gone = True
        os.close(self._pipe)

    def _overdue(self) -> Told:
        self._stacks.seek(0)
        stacks = self._stacks.read().decode("utf-8", "replace").strip()
        return Told(
            kind="broken",
            reason=(
                f"the test took longer than its budget of {self._budget_s:g} s (--rb-budget), did"
                f" not end when it was told to, and was killed; it was at:\n{stacks}"
            ),
        )


def _child_main(
    parent: int,
    pipe: int,
    work: Work,
    stacks: IO[bytes],
    budget_s: float,
    mask: set[signal.Signals],
) -> NoReturn:
    """All of a child's life; nothing leaves it, so that nothing of its parent runs twice."""
    code = EXIT_INTERRUPTED
    try:
        if not tie_to(parent):
            os._exit(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        faulthandler.dump_traceback_later(budget_s + GRACE_S / 2, file=stacks)
        try:
            told = work(lambda told: _leave(told, pipe))
        except KeyboardInterrupt:
            os._exit(EXIT_INTERRUPTED)
        except BaseException as error:
            told = Told(kind="broken", reason=explain(error))
        _leave(told, pipe)
    finally:
        os._exit(code)


def _leave(told: Told, pipe: int) -> NoReturn:
    code = 1
    try:
        _send(told, pipe)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    finally:
        os._exit(code)


def _send(told: Told, pipe: int) -> None:
    """Write it to a pipe and close that; an error that cannot be pickled stays behind."""
    try:
        data = pickle.dumps(told)
        pickle.loads(data)
    except Exception:
        told.error = None
        data = pickle.dumps(told)
    with os.fdopen(pipe, "wb") as file:
        file.write(data)
