"""A listening port: accepts connections and ends those that are idle or stuck (design.md 4)."""

from typing import Final

import trio

from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import ConnectionHook, Handlers
from rocketbed.world.api import Address, Stream, World

IDLE_S: Final = 120.0
"""A connection without a byte either way for this long is closed, seconds (wire.md 1.8)."""
STUCK_S: Final = 30.0
"""A peer that reads nothing for this long while there is data for it is closed, seconds (design.md
4)."""
SWEEP_S: Final = 5.0
"""Pause between checks of the connections, seconds; the two times above are exact up to this."""
ACCEPT_RETRY_S: Final = 0.1
"""Pause after a failed accept (no file descriptors left), so that the loop does not spin."""


class Server:
    """A port and its connections."""

    def __init__(
        self,
        world: World,
        address: Address,
        handlers: Handlers,
        *,
        on_close: ConnectionHook | None = None,
        limit: int = 0,
    ) -> None:
        """Above `limit` connections (0: no limit) a new one is closed at once."""
        self.world = world
        self.address = address
        """Address to listen on; port 0 is replaced by the chosen port after the start."""
        self.connections: dict[Connection, None] = {}
        """Open connections, oldest first."""
        self._handlers = handlers
        self._on_close = on_close
        self._limit = limit

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; reports its address once it listens. Raises `OSError`.

        Cancellation closes the port and every connection.
        """
        listener = await self.world.network.listen(*self.address)
        self.address = listener.address
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep)
                task_status.started(self.address)
                while True:
                    try:
                        stream = await listener.accept()
                    except trio.ClosedResourceError:
                        break
                    except OSError as exc:
                        self.world.log.warning("remoting.accept_failed", error=str(exc))
                        await trio.sleep(ACCEPT_RETRY_S)
                        continue
                    if self._limit and len(self.connections) >= self._limit:
                        self.world.log.warning(
                            "remoting.full", port=self.address[1], connections=self._limit
                        )
                        await trio.aclose_forcefully(stream)
                        continue
                    nursery.start_soon(self._serve, stream)
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(1, shield=True):
                await listener.aclose()

    async def _serve(self, stream: Stream) -> None:
        try:
            connection = Connection(self.world, stream, self._handlers)
        except (OSError, ValueError):  # the peer had closed, and its address is unknown
            await trio.aclose_forcefully(stream)
            return
        if self._on_close is not None:
            connection.on_close.append(self._on_close)
        self.connections[connection] = None
        try:
            await connection.run()
        finally:
            del self.connections[connection]

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            for connection in list(self.connections):
                began = connection.write_began
                if began is not None and now - began >= STUCK_S:
                    reason = f"took nothing for {STUCK_S:g} s"
                elif now - connection.last_active >= IDLE_S:
                    reason = f"idle for {IDLE_S:g} s"
                else:
                    continue
                self.world.log.info("remoting.closing", peer=connection.remote_text, reason=reason)
                connection.close()
