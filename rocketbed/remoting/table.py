"""Which function serves which request code (design.md 5).

Three kinds: `inline` (a plain function that returns the answer), `run` (a plain function whose
work is gathered and finished once for all requests of a read: sends), `spawned` (an async
function in a task of its own). An inline or run function that returns None answers later, or
never.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketbed.wire.command import Command

if TYPE_CHECKING:
    from rocketbed.remoting.connection import Connection

Inline = Callable[[Command, "Connection"], Command | None]
Spawned = Callable[[Command, "Connection"], Awaitable[Command | None]]
ConnectionHook = Callable[["Connection"], None]
PlainRun = Callable[[bytes, int, "Connection"], int]


def _nothing(connection: "Connection") -> None:
    """No work at the end of a run."""


def _leave(data: bytes, at: int, connection: "Connection") -> int:
    """Take nothing."""
    return at


@dataclass(slots=True, kw_only=True)
class Handlers:
    """The table of one port."""

    inline: dict[int, Inline] = field(default_factory=dict)
    run: dict[int, Inline] = field(default_factory=dict)
    """Requests that are gathered; `end_of_run` finishes them."""
    plain_run: PlainRun = _leave
    """Takes requests of `run` as bytes: those of a read's whole frames that it knows, from an
    offset on; returns where the first one begins that it leaves to the tables here."""
    spawned: dict[int, Spawned] = field(default_factory=dict)
    end_of_run: ConnectionHook = _nothing
    """Called after the run requests of a read, and before any other request behind them."""

    def joined(self, other: "Handlers") -> "Handlers":
        """A table that has other codes as well, none of them gathered."""
        assert not other.run, other
        return Handlers(
            inline={**self.inline, **other.inline},
            run=self.run,
            plain_run=self.plain_run,
            spawned={**self.spawned, **other.spawned},
            end_of_run=self.end_of_run,
        )

    def without(self, *codes: int) -> "Handlers":
        """A table that lacks some codes (a broker's second port does not pull)."""
        assert self.run.keys().isdisjoint(codes), "a plain run would take them all the same"
        return Handlers(
            inline={code: item for code, item in self.inline.items() if code not in codes},
            run={code: item for code, item in self.run.items() if code not in codes},
            plain_run=self.plain_run,
            spawned={code: item for code, item in self.spawned.items() if code not in codes},
            end_of_run=self.end_of_run,
        )
