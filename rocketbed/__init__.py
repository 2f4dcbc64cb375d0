"""rocketbed: a replicated message store and broker that keeps RocketMQ's files and protocol.

A program imports its names from here: `Producer`, `Consumer`, `Admin` (for trio), messages,
outcomes and all errors (`RocketbedError` is their base). The same clients are in `rocketbed.aio`
(for asyncio) and in `rocketbed.blocking` (for programs without an event loop). Names are imported
at their first use, so that `rocketbed node` does not load the client.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # known to type checkers; importing `typing` would cost each start 15 ms

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.client.consumer import Consumer
    from rocketbed.client.errors import (
        BadMessage,
        ClientError,
        MissingLibrary,
        NoBroker,
        NoNameserver,
        NoRoute,
        NotFound,
        NotSent,
        RequestRefused,
        SendRefused,
        SendUnknown,
    )
    from rocketbed.client.messages import Message, Received
    from rocketbed.client.outcome import Outcome, Refused, SendStatus, Sent, Unknown
    from rocketbed.client.producer import Producer
    from rocketbed.client.pulls import Pulled, PullStatus
    from rocketbed.remoting.errors import (
        ConnectionLost,
        NotConnected,
        RemotingError,
        RequestTimeout,
    )
    from rocketbed.wire.bodies import MessageQueue
    from rocketbed.wire.errors import ProtocolError, RocketbedError

__all__ = [
    "Admin",
    "BadMessage",
    "ClientError",
    "ConnectionLost",
    "Consumer",
    "Message",
    "MessageQueue",
    "MissingLibrary",
    "NoBroker",
    "NoNameserver",
    "NoRoute",
    "NotConnected",
    "NotFound",
    "NotSent",
    "Outcome",
    "Producer",
    "ProtocolError",
    "PullStatus",
    "Pulled",
    "Received",
    "Refused",
    "RemotingError",
    "RequestRefused",
    "RequestTimeout",
    "RocketbedError",
    "SendRefused",
    "SendStatus",
    "SendUnknown",
    "Sent",
    "Unknown",
    "__version__",
]

_HOMES = {
    "Admin": "client.admin",
    "BadMessage": "client.errors",
    "ClientError": "client.errors",
    "ConnectionLost": "remoting.errors",
    "Consumer": "client.consumer",
    "Message": "client.messages",
    "MessageQueue": "wire.bodies",
    "MissingLibrary": "client.errors",
    "NoBroker": "client.errors",
    "NoNameserver": "client.errors",
    "NoRoute": "client.errors",
    "NotConnected": "remoting.errors",
    "NotFound": "client.errors",
    "NotSent": "client.errors",
    "Outcome": "client.outcome",
    "Producer": "client.producer",
    "ProtocolError": "wire.errors",
    "PullStatus": "client.pulls",
    "Pulled": "client.pulls",
    "Received": "client.messages",
    "Refused": "client.outcome",
    "RemotingError": "remoting.errors",
    "RequestRefused": "client.errors",
    "RequestTimeout": "remoting.errors",
    "RocketbedError": "wire.errors",
    "SendRefused": "client.errors",
    "SendStatus": "client.outcome",
    "SendUnknown": "client.errors",
    "Sent": "client.outcome",
    "Unknown": "client.outcome",
}


if not TYPE_CHECKING:  # a checker has the imports above, and reports other names

    def __dir__() -> list[str]:
        return [*__all__, "aio", "blocking"]

    def __getattr__(name: str) -> object:
        """Import a public name."""
        import importlib

        if name in ("aio", "blocking"):
            return importlib.import_module(f"rocketbed.{name}")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'rocketbed' has no attribute {name!r}")
        return getattr(importlib.import_module(f"rocketbed.{home}"), name)
