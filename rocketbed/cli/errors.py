"""One line for an error that a user can do something about: a path, a port, a peer."""

import errno
import socket
from typing import Final

from rocketbed.wire.errors import RocketbedError, leaves

_REMEDIES: Final = {
    errno.EADDRINUSE: "stop the program that listens there, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
}
_PATH_REMEDY: Final = "choose another path, or change its permissions"


def sentence(error: BaseException) -> str | None:
    """Return what happened, where, and what to do; None for a mistake of the program, which needs
    its traceback."""
    lines = [_line(leaf) for leaf in leaves(error)]
    if not lines or None in lines:
        return None
    return "; ".join(dict.fromkeys(filter(None, lines)))


def _line(error: BaseException) -> str | None:
    if isinstance(error, RocketbedError):
        return str(error)
    if not isinstance(error, OSError):
        return None
    reason = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return f"{reason}: check the spelling of the address"
    if error.filename is not None:
        remedy = _REMEDIES.get(error.errno or 0, _PATH_REMEDY)
        return f"{error.filename} cannot be used: {reason}: {remedy}"
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{reason}: {remedy}" if remedy else reason
