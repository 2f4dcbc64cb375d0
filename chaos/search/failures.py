"""Explanations of failed runs: a sentence for foreseen errors, otherwise a traceback."""

import errno
import os
import shutil
import traceback
from typing import Final

from rocketbed.chaos.backends.sim.incarnation import SimulationError
from rocketbed.host.errors import HostError
from rocketbed.wire.errors import RocketbedError, leaves

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def explain(error: BaseException) -> str:
    """Return why a run failed: a sentence for errors that the harness foresees, else a
    traceback."""
    for leaf in leaves(error):
        if isinstance(leaf, OSError) and _says_full(leaf):
            place = leaf.filename or "its scratch directory"
            reason = f"no space left where the harness writes ({place})"
            return f"{reason}: free some space and run again"
    for leaf in leaves(error):
        if isinstance(leaf, HostError | RocketbedError | SimulationError):
            return str(leaf)
    return "".join(traceback.format_exception(error))


def is_full(error: BaseException) -> bool:
    """True if the harness could not write because the disk was full."""
    return any(isinstance(leaf, OSError) and _says_full(leaf) for leaf in leaves(error))


def _says_full(error: OSError) -> bool:
    if isinstance(error, shutil.Error):  # errors of a copied tree carry their reasons as text
        return any(os.strerror(number) in str(error) for number in FULL)
    return error.errno in FULL
