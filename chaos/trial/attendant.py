"""Who may sit at the controls of a run."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from chaos.trial.conductor import Conductor


class Attendant(Protocol):
    """Somebody at the controls: watches a run, breaks things by hand, and says when to end it."""

    needs: tuple[str, ...]
    """Capabilities that would be of use."""

    async def attend(self, conductor: "Conductor") -> None:
        """Called when the run begins, cancelled when it is over."""
        ...
