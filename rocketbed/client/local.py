"""Where a consumer that reads all queues for itself stands: in a file of its own machine.

RocketMQ calls it broadcasting, and brokers keep no positions for it. The file has the form of its
`LocalFileOffsetStore`.
"""

from collections.abc import Mapping
from contextlib import suppress
from posixpath import abspath, dirname
from typing import Final, Protocol

import trio

from rocketbed.client.errors import ClientError
from rocketbed.client.routes import Route
from rocketbed.client.sharing import Known
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.encoding.json_dialect import BodyError
from rocketbed.wire.errors import ProtocolError
from rocketbed.world.api import Lock, World

SIZE_MAX: Final = 64 << 20
"""Bytes of such a file; a longer one is none."""


class Positions(Protocol):
    """Where a group stands."""

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """In a queue; None when it never committed."""
        ...

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store it."""
        ...


class AllQueues:
    """The part of a member that shares nothing out."""

    async def own(self, route: Route, known: Known) -> list[MessageQueue] | None:
        """All queues that can be read."""
        return sorted(route.readable)


class LocalPositions:
    """Those in a file, which belongs to one consumer at a time."""

    def __init__(self, world: World, path: str) -> None:
        self.path = abspath(path)  # whatever becomes of the working directory
        self._disk = world.disk
        self._table: dict[MessageQueue, int] = {}
        """What the file has."""
        self._wanted: dict[MessageQueue, int] = {}
        """What the next write makes of it."""
        self._held: Lock | None = None
        self._turn = trio.Lock()

    def open(self) -> None:
        """Read the file, if it is there. Raises `ClientError`."""
        try:
            self._disk.makedirs(dirname(self.path))
            self._held = self._disk.lock(f"{self.path}.lock")
        except OSError as exc:
            raise ClientError(
                f"positions cannot be kept in {self.path}: its directory has to be there and"
                f" writable, for the file is replaced: {exc}"
            ) from exc
        if self._held is None:
            raise ClientError(f"{self.path} is another consumer's: each needs a file of its own")
        try:
            if self._disk.exists(self.path):
                self._table = self._read()
                self._wanted = dict(self._table)
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
        """Let another consumer have the file."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """As the file has it."""
        return self._table.get(queue)

    def prepare(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Have the next commit of any queue store these along: a write takes the whole file."""
        self._wanted.update(offsets)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Replace the file; durable when this returns. Raises `ClientError`."""
        self._wanted[queue] = offset
        async with self._turn:  # whoever waits here is stored with the first of them
            if self._table.get(queue) == self._wanted[queue]:
                return
            table = dict(self._wanted)
            try:
                self._check_held()
                await self._write(QueueOffsets(offset_table=table).encode())
            except OSError as exc:
                raise ClientError(f"positions cannot be written to {self.path}: {exc}") from exc
            self._table = table

    def _check_held(self) -> None:
        if self._held is None:
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
        self._check_held()
        self._disk.rename(temporary, self.path)
        await self._disk.sync_dir(dirname(self.path))
