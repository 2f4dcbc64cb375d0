"""A small process that outlives its harness by the moment it takes to clean up after it.

It is started with the run's directory and, as standard input, a pipe whose other end only the
harness has. It forks and leaves the harness's session, so that neither a signal to the process
group nor a killed terminal takes it along. When the pipe ends, or the harness does, it sweeps.
"""

import os
import select
import signal
import sys
from pathlib import Path

from chaos.process.janitor import clean, owner_is_dead, owner_pid


def watch(directory: Path, pipe: int) -> None:
    """Wait until the run is over or its owner is dead; then clean up what is left, if anything.

    A dying process closes its pipes before it counts as dead, so the end of the pipe alone is
    no sign of death.
    """
    try:
        owner = os.pidfd_open(owner_pid(directory))
    except OSError:
        owner = -1
    if owner >= 0 and not owner_is_dead(directory):
        waiting = select.poll()
        waiting.register(owner, select.POLLIN)
        waiting.register(pipe, select.POLLIN)
        waiting.poll()
        waiting.unregister(pipe)
        if directory.exists():
            waiting.poll()
    if directory.exists() and owner_is_dead(directory):
        clean(directory)


def main() -> None:
    """Detach, then watch."""
    directory = Path(sys.argv[1])
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(directory, 0)


if __name__ == "__main__":
    main()
