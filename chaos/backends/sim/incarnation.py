"""Deaths of simulated processes: at once, in the middle of whatever they do.

SIGKILL and a power cut run no `finally` and no `except`. A coroutine cannot simply be dropped in
the middle of plain code, though, so every seam of a dead process raises `SimKilled`: the code may
still unwind in its own memory, but nothing it does reaches a disk, a stream or a log any more.
"""

from rocketbed.wire.errors import RocketbedError


class SimKilled(BaseException):
    """Raised by every seam of a process that is dead. Node code must let it pass."""


class SimulationError(RocketbedError):
    """Failure of the simulation itself: a spinning node, a spent budget, a wrong call."""


class Life:
    """Process state of one incarnation, alive or dead, which its disk, clock and streams share."""

    __slots__ = ("cause", "dead")

    def __init__(self) -> None:
        self.dead = False
        self.cause = ""
        """Cause of its death: `kill`, `power`, `exit` or `end`."""

    def check(self) -> None:
        if self.dead:
            raise SimKilled(self.cause)

    def die(self, cause: str) -> None:
        if not self.dead:
            self.dead = True
            self.cause = cause
