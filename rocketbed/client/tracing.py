"""Where a program may look on: at each send, and at each message that a listener handles."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome


class Sending(Protocol):
    """One send, from before its first attempt on."""

    @property
    def properties(self) -> Mapping[str, str]:
        """To be stored with each message, for those who read it."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """How it ended; not called when it raised."""
        ...


class Tracing(Protocol):
    """What a producer or a consumer tells. It must not raise, and must not wait."""

    def sending(self, messages: Sequence[Message], group: str) -> AbstractContextManager[Sending]:
        """Messages of one topic are about to be sent, together if there are several."""
        ...

    def handling(self, message: Received, group: str) -> AbstractContextManager[None]:
        """A listener's function is about to be called."""
        ...
