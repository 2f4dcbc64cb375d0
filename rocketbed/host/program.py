"""Any program, with its life tied to its starter: see `rocketbed.host.parent_death`.

    python -P -m rocketbed.host.program <pid of the starter> java ...

The kernel keeps the wish over `exec`, so it is expressed here and the program is put in our place.
The library that watches our own nodes' disk calls is left behind: it sees no stores to mappings,
and half of what a program does would look like all of it.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from rocketbed.host.parent_death import EXIT_ORPHAN, tie_to

PRELOAD: Final = "LD_PRELOAD"


def tied_program(command: Sequence[str]) -> list[str]:
    """A command line whose process dies with this one."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), *command]


def without_shim(environment: dict[str, str]) -> dict[str, str]:
    """An environment that preloads what moves the clock, and nothing else."""
    parts = environment.get(PRELOAD, "").split(":")
    kept = ":".join(part for part in parts if "faketime" in os.path.basename(part))
    rest = {key: value for key, value in environment.items() if key != PRELOAD}
    return {**rest, PRELOAD: kept} if kept else rest


if __name__ == "__main__":
    if not tie_to(int(sys.argv[1])):
        sys.exit(EXIT_ORPHAN)
    os.execvpe(sys.argv[2], sys.argv[2:], without_shim(dict(os.environ)))
