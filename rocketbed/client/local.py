"""Positions of a consumer that reads all queues by itself, in a file of its own machine.

RocketMQ calls this broadcasting, and brokers keep no positions for it. The file has the format of
its `LocalFileOffsetStore`.
"""

from collections.abc import Mapping
from contextlib import suppress
from posixpath import abspath, dirname
from typing import Final, Protocol

import trio

from rocketbed.client.errors import ClientError
from rocketbed.client.routes import Route
from rocketbed.client.sharing import MembersAt
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.encoding.json_dialect import BodyError
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Lock, World

SIZE_MAX: Final = 64 << 20
"""Largest size of such a file, bytes; a larger one is refused."""


class Positions(Protocol):
    """Committed positions of a group."""

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a queue; None when the group never committed."""
        ...

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a committed offset."""
        ...


class AllQueues:
    """The share of a member in a group that does not share queues."""

    async def own(self, route: Route, members_at: MembersAt) -> list[MessageQueue] | None:
        """Return all readable queues."""
        return sorted(route.readable)


class LocalPositions:
    """Positions in a file, which belongs to one consumer at a time."""

    def __init__(self, world: World, path: str) -> None:
        self.path = abspath(path)  # independent of later changes of the working directory
        self._disk = world.disk
        self._table: dict[MessageQueue, int] = {}
        """Positions in the file."""
        self._next_table: dict[MessageQueue, int] = {}
        """Positions that the next write stores."""
        self._lock: Lock | None = None
        self._turn = trio.Lock()

    def open(self) -> None:
        """Read the file, if it exists. Raises `ClientError`."""
        try:
            self._disk.makedirs(dirname(self.path))
            self._lock = self._disk.lock(f"{self.path}.lock")
        except OSError as exc:
            raise ClientError(
                f"positions cannot be kept in {self.path}: its directory has to be there and"
                f" writable, for the file is replaced: {exc}"
            ) from exc
        if self._lock is None:
            raise ClientError(f"{self.path} is another consumer's: each needs a file of its own")
        try:
            if self._disk.exists(self.path):
                self._table = self._read()
                self._next_table = dict(self._table)
        except OSError as exc:
            self.close()
            raise ClientError(f"the positions in {self.path} cannot be read: {exc}") from exc
        except ProtocolError as exc:
            self.close()
            raise ClientError(
                f"the positions in {self.path} cannot be read: {exc}; remove the file to begin"
                " where subscriptions say"
            ) from exc

    def _read(self) -> dict[MessageQueue, int]:
        file = self._disk.open(self.path, writable=False)
        try:
            if not 0 < file.size() <= SIZE_MAX:
                raise BodyError(f"it has {file.size()} bytes")
            return QueueOffsets.decode(file.read_at(0, file.size())).offset_table
        finally:
            file.close()

    def close(self) -> None:
        """Let another consumer use the file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the position in the file; None when the group never committed."""
        return self._table.get(queue)

    def prepare(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Have the next commit of any queue store these too, since a write replaces the whole
        file."""
        self._next_table.update(offsets)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Replace the file; durable when this returns. Raises `ClientError`."""
        self._next_table[queue] = offset
        async with self._turn:  # the first of several waiting commits stores all of them
            if self._table.get(queue) == self._next_table[queue]:
                return
            table = dict(self._next_table)
            try:
                self._check_lock()
                await self._write(QueueOffsets(offset_table=table).encode())
            except OSError as exc:
                raise ClientError(f"positions cannot be written to {self.path}: {exc}") from exc
            self._table = table

    def _check_lock(self) -> None:
        if self._lock is None:
            raise OSError("the consumer is closed, and the file may be another's now")

    async def _write(self, data: bytes) -> None:
        temporary = f"{self.path}.tmp"
        with suppress(FileNotFoundError):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.write_at(0, data)
            await file.sync()
        finally:
            file.close()
        self._check_lock()
        self._disk.rename(temporary, self.path)
        await self._disk.sync_dir(dirname(self.path))
