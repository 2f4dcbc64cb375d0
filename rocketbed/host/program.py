"""Any program, with its life tied to its starter: see `rocketbed.host.parent_death`.

    python -P -m rocketbed.host.program <pid of the starter> java ...

The kernel keeps the setting over `exec`, so it is made here and then the program replaces this
process. The preloaded library that watches disk calls of rocketbed nodes is removed: it does not
see stores to memory mappings, so half of the program's writes would look like all of them.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

from rocketbed.host.parent_death import EXIT_ORPHAN, tie_to

PRELOAD: Final = "LD_PRELOAD"


def tied_program(command: Sequence[str]) -> list[str]:
    """Return a command line whose process dies with this one."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), *command]


def without_shim(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment that preloads only the library that shifts the clock."""
    parts = environment.get(PRELOAD, "").split(":")
    preload = ":".join(part for part in parts if "faketime" in os.path.basename(part))
    variables = {key: value for key, value in environment.items() if key != PRELOAD}
    return {**variables, PRELOAD: preload} if preload else variables


if __name__ == "__main__":
    if not tie_to(int(sys.argv[1])):
        sys.exit(EXIT_ORPHAN)
    os.execvpe(sys.argv[2], sys.argv[2:], without_shim(dict(os.environ)))
