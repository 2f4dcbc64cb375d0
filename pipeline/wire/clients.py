"""Clients that stay open: one for each cluster and process, shared by its tasks.

Spark's workers run many tasks, one after the other, and a task asks for many chunks. Connections
and routes are reused; an idle client sends a heartbeat to brokers twice a minute.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from rocketbed.client.errors import ClientError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.wire.log import WireLog
from rocketbed.portal import Portal

T = TypeVar("T")

CLIENTS_MAX: Final = 4
"""Clusters with an open client; the least recently used client is closed."""


class SharedLog:
    """A `WireLog` that any thread may call."""

    def __init__(self, options: Options) -> None:
        """Connects at the first call."""
        self._options = options
        self._lock = threading.Lock()
        self._open: tuple[WireLog, Portal] | None = None

    def call(self, question: Callable[[WireLog], Awaitable[T]]) -> T:
        """Run a question and return its result; opens the client first if it is closed."""
        with self._lock:
            if self._open is None:
                limit_s = self._options.limit_s
                log = WireLog(self._options.endpoints, limit_s=limit_s, anyone=True)
                portal = Portal(log)
                portal.open()
                self._open = log, portal
            opened = log, portal = self._open
        try:
            return portal.call(lambda: question(log))
        except ClientError:  # the client has failed
            with suppress(Exception):
                self._end(opened)
            raise

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._end(self._open)

    def _end(self, opened: tuple[WireLog, Portal] | None) -> None:
        """Close this client, unless another thread has replaced it meanwhile."""
        with self._lock:
            if opened is None or self._open is not opened:
                return
            self._open = None
        opened[1].close()


_CLIENTS: Final[OrderedDict[tuple[int, str, float], SharedLog]] = OrderedDict()
_LOCK: Final = threading.Lock()


def shared_log(options: Options) -> SharedLog:
    """Return this process's client of a cluster; a forked process has its own."""
    key = os.getpid(), options.endpoints, options.limit_s
    with _LOCK:
        client = _CLIENTS.setdefault(key, SharedLog(options))
        _CLIENTS.move_to_end(key)
        old = _CLIENTS.popitem(last=False)[1] if len(_CLIENTS) > CLIENTS_MAX else None
    if old is not None:
        old.close()
    return client


def close_all() -> None:
    """Close the clients of this process."""
    with _LOCK:
        clients = [_CLIENTS.pop(key) for key in [*_CLIENTS] if key[0] == os.getpid()]
    for client in clients:
        client.close()
