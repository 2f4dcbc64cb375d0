"""Tables of request handlers, generic in the connection that a handler gets (design.md 5).

Three kinds of handler: `inline` (a plain function that returns the answer), `run` (a plain function
whose work is gathered and finished once for all requests of a read: sends), `spawned` (an async
function in a task of its own). An inline or run handler that returns None answers later, or never.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rocketbed.wire.command import Command

Peer = TypeVar("Peer")
"""The connection on which the request arrived."""


def _nothing(connection: object) -> None:
    """Do nothing at the end of a run."""


def _handle_none(data: bytes, at: int, connection: object) -> int:
    """Handle no request."""
    return at


@dataclass(slots=True, kw_only=True)
class HandlerTable(Generic[Peer]):
    """The handlers of one port, by request code."""

    inline: dict[int, Callable[[Command, Peer], Command | None]] = field(default_factory=dict)
    run: dict[int, Callable[[Command, Peer], Command | None]] = field(default_factory=dict)
    """Handlers of requests that are gathered; `end_of_run` finishes them."""
    plain_run: Callable[[bytes, int, Peer], int] = _handle_none
    """Handles requests of `run` as bytes, from an offset on in a read's whole frames; returns the
    position of the first frame that it leaves to the tables here."""
    spawned: dict[int, Callable[[Command, Peer], Awaitable[Command | None]]] = field(
        default_factory=dict
    )
    end_of_run: Callable[[Peer], None] = _nothing
    """Called after the run requests of a read, and before any other request after them."""

    def joined(self, further: "HandlerTable[Peer]") -> "HandlerTable[Peer]":
        """Return a table with further codes, none of them gathered."""
        assert not further.run, further
        return HandlerTable(
            inline={**self.inline, **further.inline},
            run=self.run,
            plain_run=self.plain_run,
            spawned={**self.spawned, **further.spawned},
            end_of_run=self.end_of_run,
        )

    def without(self, *codes: int) -> "HandlerTable[Peer]":
        """Return a table without some codes (a broker's second port does not pull)."""
        assert self.run.keys().isdisjoint(codes), "a plain run would take them all the same"
        return HandlerTable(
            inline={code: item for code, item in self.inline.items() if code not in codes},
            run={code: item for code, item in self.run.items() if code not in codes},
            plain_run=self.plain_run,
            spawned={code: item for code, item in self.spawned.items() if code not in codes},
            end_of_run=self.end_of_run,
        )
