"""A rocketbed program whose life is tied to the program that started it.

    python -P -m rocketbed.host.parent_death <pid of the starter> node -c broker.conf

A chaos run kills on purpose and may be killed itself; the processes it started must not outlive it.
So the kernel is told to send SIGKILL to this process when the thread that started it ends, and only
then the command runs. This is not done between fork and exec, since the starter may have threads.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
EXIT_ORPHAN: Final = 1


def tie_to(parent: int) -> bool:
    """Die when the thread that started this process ends; False when `parent` has already ended.

    Raises `OSError` if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def tied_command(*arguments: str) -> list[str]:
    """Return the command line of a rocketbed program, tied to this process."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), *arguments]


def _watch_marks() -> None:
    """Make marks crash points, if the harness wants that (`rocketbed.host.marks`)."""
    path = os.environ.get("ROCKETBED_MARKS")
    if path:
        from rocketbed.host.marks import watched
        from rocketbed.world import real

        vars(real)["_ignore_mark"] = watched(path)


if __name__ == "__main__":
    if not tie_to(int(sys.argv[1])):
        sys.exit(EXIT_ORPHAN)
    _watch_marks()
    sys.argv[:] = ["rocketbed", *sys.argv[2:]]
    runpy.run_module("rocketbed", run_name="__main__")  # by name, since it is above this folder
