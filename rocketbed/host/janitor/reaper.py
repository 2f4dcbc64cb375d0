"""The reaper process: a small process that outlives its harness and cleans up after it.

It is started with the run's directory and, as standard input, a pipe whose other end only the
harness has. It forks and leaves the harness's session, so that neither a signal to the process
group nor the end of a terminal kills it. When the pipe or the harness ends, it sweeps.
"""

import os
import select
import signal
import sys
from pathlib import Path

from rocketbed.host.janitor.record import clean, owner_is_dead, remove_unborn


def watch(directory: Path, unborn: Path, owner_pid: int, pipe: int) -> None:
    """Wait until the run is over or its owner is dead; then clean up what is left.

    `unborn` is the directory's name while its owner creates it. A dying process closes its pipes
    before it counts as dead, so the end of the pipe alone does not prove its death.
    """
    try:
        owner = os.pidfd_open(owner_pid)
    except OSError:
        owner = -1
    if owner >= 0:
        waiting = select.poll()
        waiting.register(owner, select.POLLIN)
        waiting.register(pipe, select.POLLIN)
        waiting.poll()
        waiting.unregister(pipe)
        if directory.exists() or unborn.exists():
            waiting.poll()
    if unborn.exists():
        remove_unborn(unborn)
    if directory.exists() and owner_is_dead(directory):
        clean(directory)


def main() -> None:
    directory, unborn, owner_pid = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    is_owner_there = os.getppid() == owner_pid
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if is_owner_there:
        watch(directory, unborn, owner_pid, 0)


if __name__ == "__main__":
    main()
