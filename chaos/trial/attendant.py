"""Observers of a run in progress: notified of events, given read access, or in control of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from rocketbed.chaos.trial.api import Backend

if TYPE_CHECKING:
    from rocketbed.chaos.trial.conductor import Conductor

Say = Callable[[str], None]
"""Gets a line for people."""
Visit = Callable[[str, Backend], Awaitable[None]]
"""Gets the occasion, `before the faults` or `after the faults`."""
OCCASIONS: Final = ("before the faults", "after the faults")


class Attendant(Protocol):
    """Somebody at the controls: watches a run, breaks things by hand, and says when to end it."""

    needs: tuple[str, ...]
    """Capabilities that would be of use."""

    async def attend(self, conductor: "Conductor") -> None:
        """Called when the run begins, cancelled when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    say: Say
    """Is told what happens, as it happens."""
    visit: Visit | None = None
    """Called when all serves, before the load and again before the stop."""
    attendant: Attendant | None = None
    """With one the storm goes on after the last step, until `end_storm`."""
