"""Interface for observing each send, and each message that a listener handles."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from rocketbed.client.messages import Message, Received
from rocketbed.client.outcome import Outcome


class Sending(Protocol):
    """Observer of one send, from before its first attempt."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties to store with each message, for its readers."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """Report the outcome; not called when the send raised."""
        ...


class Tracing(Protocol):
    """Observer of a producer or a consumer. It must not raise or wait."""

    def sending(self, messages: Sequence[Message], group: str) -> AbstractContextManager[Sending]:
        """Report messages of one topic that are about to be sent, as a batch if there are
        several."""
        ...

    def handling(self, message: Received, group: str) -> AbstractContextManager[None]:
        """Enter before a listener's function is called, and leave after it."""
        ...
