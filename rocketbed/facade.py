"""Base of the clients in `rocketbed.blocking` and `rocketbed.aio`, with their constructors."""

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rocketbed.client.admin import Admin
from rocketbed.client.consumer import Consumer
from rocketbed.client.producer import Producer
from rocketbed.portal import Portal

C = TypeVar("C")
P = ParamSpec("P")
Client = TypeVar("Client", bound=AbstractAsyncContextManager[Any])


class Face(Generic[C]):
    """A client, or a part of one, behind a portal."""

    def __init__(self, portal: Portal, client: C) -> None:
        self._portal = portal
        self._client = client


def made_with(
    make: Callable[P, Client],
) -> Callable[[Callable[[Any, Portal, Client], None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the keyword arguments of a client, which gets the real world.

    The decorated function gets the client and its portal.
    """
    signature = inspect.signature(make)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "world"]

    def decorate(
        construct: Callable[[Any, Portal, Client], None],
    ) -> Callable[Concatenate[Any, P], None]:
        @wraps(construct)
        def init(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            if args or "world" in kwargs:
                raise TypeError(f"{type(self).__name__} takes keyword arguments, and no world")
            client = make(*args, **kwargs)
            construct(self, Portal(client), client)

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        own = signature.replace(parameters=[first, *parameters])
        init.__signature__ = own  # type: ignore[attr-defined]
        return init

    return decorate


class ProducerFace(Face[Producer]):
    """A producer in the real world."""

    @made_with(Producer)
    def __init__(self, portal: Portal, client: Producer) -> None:
        """See `rocketbed.Producer`."""
        super().__init__(portal, client)


class ConsumerFace(Face[Consumer]):
    """A consumer in the real world."""

    @made_with(Consumer)
    def __init__(self, portal: Portal, client: Consumer) -> None:
        """See `rocketbed.Consumer`."""
        super().__init__(portal, client)


class AdminFace(Face[Admin]):
    """An administrator in the real world."""

    @made_with(Admin)
    def __init__(self, portal: Portal, client: Admin) -> None:
        """See `rocketbed.Admin`."""
        super().__init__(portal, client)
