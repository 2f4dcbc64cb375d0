"""Clients that stay open: one for each cluster in a process, however many tasks it runs.

Spark's workers run many tasks, one after the other, and a task asks for many chunks. Connections
and routes are worth keeping; an idle client sends a heartbeat to brokers twice a minute.
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

KEPT_MAX: Final = 4
"""Clusters; the one that was not asked for longest is left."""


class KeptLog:
    """A `WireLog` that any thread may ask."""

    def __init__(self, options: Options) -> None:
        """Nothing is connected yet."""
        self._options = options
        self._lock = threading.Lock()
        self._open: tuple[WireLog, Portal] | None = None

    def call(self, question: Callable[[WireLog], Awaitable[T]]) -> T:
        """What the question returns or raises. Opens the client if it is not."""
        with self._lock:
            if self._open is None:
                limit_s = self._options.limit_s
                log = WireLog(self._options.endpoints, limit_s=limit_s, anyone=True)
                portal = Portal(log)
                portal.open()
                self._open = log, portal
            kept = log, portal = self._open
        try:
            return portal.call(lambda: question(log))
        except ClientError:  # it ended by itself
            with suppress(Exception):
                self._end(kept)
            raise

    def close(self) -> None:
        """End the connections; the next question opens others."""
        self._end(self._open)

    def _end(self, kept: tuple[WireLog, Portal] | None) -> None:
        """Another thread may have opened others meanwhile."""
        with self._lock:
            if kept is None or self._open is not kept:
                return
            self._open = None
        kept[1].close()


_KEPT: Final[OrderedDict[tuple[int, str, float], KeptLog]] = OrderedDict()
_LOCK: Final = threading.Lock()


def kept_log(options: Options) -> KeptLog:
    """This process's client of a cluster; a fork has clients of its own."""
    key = os.getpid(), options.endpoints, options.limit_s
    with _LOCK:
        found = _KEPT.setdefault(key, KeptLog(options))
        _KEPT.move_to_end(key)
        old = _KEPT.popitem(last=False)[1] if len(_KEPT) > KEPT_MAX else None
    if old is not None:
        old.close()
    return found


def close_all() -> None:
    """End the clients of this process."""
    with _LOCK:
        clients = [_KEPT.pop(key) for key in [*_KEPT] if key[0] == os.getpid()]
    for client in clients:
        client.close()
