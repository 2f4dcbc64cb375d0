"""Small values with versions, changed by compare-and-swap: the storage of the register.

There are two stores: a file of SQLite for the clusters of one machine (`sqlite.py`), etcd for
several controllers (`etcd.py`). Both are linearizable: a read sees every swap that was answered
before it began.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from rocketbed.replication.errors import ReplicationError
from rocketbed.wire.codes import ResponseCode

CHANGES_MAX = 1000
"""Versions of a value that are stored besides the newest, for inspection."""


class CasError(ReplicationError):
    """Base of the errors of such a store."""


class CasUnknown(CasError):
    """No answer: the swap may have been made, or may be made later. Read before the next try."""


class CasSuperseded(CasError):
    """Another process may change this store now, and this one no longer may."""

    response_code: ClassVar[int] = ResponseCode.CONTROLLER_NOT_LEADER


class CasBroken(CasError):
    """The store cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value at one version."""

    version: int
    """1 for the first, one higher with each swap."""
    value: bytes


class CasStore(Protocol):
    """Values by name. All processes may read; one at a time, by its claim, may swap."""

    async def claim(self) -> None:
        """Wait until this process is the one that may swap. Raises `CasBroken`."""
        ...

    async def keep(self) -> None:
        """Hold the claim until cancelled. Raises `CasSuperseded` when it is lost."""
        ...

    async def read(self, name: str) -> Versioned | None:
        """Return the newest version; None if there was never one. Raises `CasError`."""
        ...

    async def swap(self, name: str, value: bytes, *, after: int) -> bool:
        """Write version `after + 1` if the newest is `after` (0: none yet); True if it was.

        Durable when it returns True. Raises `CasUnknown`, and then either is possible;
        `CasSuperseded` (also before a claim) and `CasBroken`, and then it was not made.
        """
        ...

    async def names(self) -> list[str]:
        """Return the names of all values, sorted. Raises `CasError`."""
        ...

    async def changes(self, name: str) -> list[Versioned]:
        """Return the newest version and up to `CHANGES_MAX` before it, oldest first. Raises
        `CasError`."""
        ...

    async def aclose(self) -> None:
        """Close the store; a second call does nothing."""
        ...
