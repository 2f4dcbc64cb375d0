"""What is said when a run itself fails: a sentence for what is foreseen, else where it happened."""

import errno
import os
import shutil
import traceback
from collections.abc import Iterator
from typing import Final

from rocketbed.chaos.backends.sim.incarnation import SimulationError
from rocketbed.host.errors import HostError
from rocketbed.wire.errors import RocketbedError

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def explain(error: BaseException) -> str:
    """Why a run failed: a sentence for what the harness foresees, else where it happened."""
    for one in _leaves(error):
        if isinstance(one, OSError) and _says_full(one):
            place = one.filename or "its scratch directory"
            reason = f"no space left where the harness writes ({place})"
            return f"{reason}: free some space and run again"
    for one in _leaves(error):
        if isinstance(one, HostError | RocketbedError | SimulationError):
            return str(one)
    return "".join(traceback.format_exception(error))


def is_full(error: BaseException) -> bool:
    """Whether the harness could not write for want of space."""
    return any(isinstance(one, OSError) and _says_full(one) for one in _leaves(error))


def _says_full(error: OSError) -> bool:
    if isinstance(error, shutil.Error):  # of a copied tree: reasons as texts
        return any(os.strerror(number) in str(error) for number in FULL)
    return error.errno in FULL


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
