"""What happens on the way from one machine to another.

Apart from the rest of the seam (`chaos.run.api`), since the process of the packet switch is to
start fast.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """One direction between two machines."""

    cut: bool = False
    delay_s: float = 0.0
    """On top of the weather's."""
    jitter_s: float = 0.0
    """Up to this much more, for each packet or transmission anew."""
    loss: float = 0.0
    """Share of what is lost on the way, between 0 and 1."""
    rate: int | None = None
    """Bytes a second."""


HEALTHY: Final = LinkState()
