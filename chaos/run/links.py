"""State of the links between machines.

In a module of its own, apart from `chaos.run.api`, so that the process of the packet switch starts
fast.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """State of one direction between two machines."""

    cut: bool = False
    delay_s: float = 0.0
    """Seconds, in addition to the delay of the background faults."""
    jitter_s: float = 0.0
    """Longest additional delay, drawn anew for each packet or transmission."""
    loss: float = 0.0
    """Share of the packets that is lost, between 0 and 1."""
    rate: int | None = None
    """Bytes a second; None for no limit."""


HEALTHY: Final = LinkState()
