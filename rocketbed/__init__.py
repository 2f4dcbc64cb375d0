"""rocketbed: a replicated message store and broker that keeps RocketMQ's files and protocol.

A user's program imports its names from here: `Producer`, `Consumer`, `Admin` (for trio), the same
in `rocketbed.blocking` (for programs without an event loop), and `Message`. They are imported when
first asked for, so that `rocketbed node` does not load the client.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as checkers know it; `typing` would cost each start 15 ms

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.client.consumer import Consumer
    from rocketbed.client.messages import Message, Received
    from rocketbed.client.outcome import Outcome, Refused, SendStatus, Sent, Unknown
    from rocketbed.client.producer import Producer

__all__ = [
    "Admin",
    "Consumer",
    "Message",
    "Outcome",
    "Producer",
    "Received",
    "Refused",
    "SendStatus",
    "Sent",
    "Unknown",
    "__version__",
]

_HOMES = {
    "Admin": "admin",
    "Consumer": "consumer",
    "Message": "messages",
    "Outcome": "outcome",
    "Producer": "producer",
    "Received": "messages",
    "Refused": "outcome",
    "SendStatus": "outcome",
    "Sent": "outcome",
    "Unknown": "outcome",
}


if not TYPE_CHECKING:  # a checker has the imports above, and reports other names

    def __getattr__(name: str) -> object:
        """A public name, imported now."""
        import importlib

        if name == "blocking":
            return importlib.import_module("rocketbed.blocking")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'rocketbed' has no attribute {name!r}")
        return getattr(importlib.import_module(f"rocketbed.client.{home}"), name)
