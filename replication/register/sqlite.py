"""A compare-and-swap store in one file of SQLite, for one process.

Each change is one transaction that is synced before it is answered (`synchronous=FULL`: with less,
a power loss could bring an older version back, and an epoch would be assigned twice). The file is
locked as long as the process has it open, so that no second controller changes it.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import trio

from rocketbed.replication.register.cas import (
    CHANGES_MAX,
    CasBroken,
    CasSuperseded,
    CasUnknown,
    Versioned,
)
from rocketbed.world.api import World

T = TypeVar("T")

APPLICATION_ID = 0x52424353
"""Marks the file as ours, in its header ("RBCS")."""
FORMAT = 1
LOOK_S = 1.0
"""Interval of the checks that the file exists."""

_SCHEMA = """
CREATE TABLE newest(name TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE changes(
    name TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL, wall_ms INTEGER NOT NULL,
    PRIMARY KEY(name, version));
"""


class SqliteCas:
    """Store in a file; see `rocketbed.replication.register.cas.CasStore`. Created by
    `open_sqlite`."""

    def __init__(self, world: World, path: str, connection: sqlite3.Connection) -> None:
        self._world = world
        self._path = path
        self._connection: sqlite3.Connection | None = connection
        self._turn = trio.Lock()
        """Held while a thread uses the connection."""
        self._file = _identity(path)
        self._broken: CasBroken | None = None

    async def claim(self) -> None:
        """Return: the claim is held since the file was opened."""

    async def keep(self) -> None:
        """Hold the claim until the file is closed, or missing. Raises `CasBroken`."""
        while True:
            await trio.sleep(LOOK_S)
            if _identity(self._path) != self._file:
                raise CasBroken(
                    f"the register {self._path} is gone, or another file: stop this process, bring"
                    " its newest copy back, start it again"
                )

    async def read(self, name: str) -> Versioned | None:
        """Implement `CasStore.read`."""

        def read(connection: sqlite3.Connection) -> Versioned | None:
            row = connection.execute(
                "SELECT version, value FROM newest WHERE name = ?", (name,)
            ).fetchone()
            return Versioned(*row) if row else None

        return await self._run(read)

    async def swap(self, name: str, value: bytes, *, after: int) -> bool:
        """Implement `CasStore.swap`; `CasUnknown` only while the disk is full."""
        wall_ms = self._world.clock.wall_ms()

        def swap(connection: sqlite3.Connection) -> bool:
            version = after + 1
            if after:
                done = connection.execute(
                    "UPDATE newest SET version = ?, value = ? WHERE name = ? AND version = ?",
                    (version, value, name, after),
                )
            else:
                done = connection.execute(
                    "INSERT OR IGNORE INTO newest VALUES (?, ?, ?)", (name, version, value)
                )
            if done.rowcount != 1:
                return False
            connection.execute(
                "INSERT INTO changes VALUES (?, ?, ?, ?)", (name, version, value, wall_ms)
            )
            connection.execute(
                "DELETE FROM changes WHERE name = ? AND version < ?", (name, version - CHANGES_MAX)
            )
            return True

        return await self._run(swap)

    async def names(self) -> list[str]:
        """Implement `CasStore.names`."""
        return await self._run(
            lambda db: [name for (name,) in db.execute("SELECT name FROM newest ORDER BY name")]
        )

    async def changes(self, name: str) -> list[Versioned]:
        """Implement `CasStore.changes`."""
        return await self._run(
            lambda db: [
                Versioned(*row)
                for row in db.execute(
                    "SELECT version, value FROM changes WHERE name = ? ORDER BY version", (name,)
                )
            ]
        )

    async def aclose(self) -> None:
        """Implement `CasStore.aclose`."""
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None:
                await self._world.offload(connection.close)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run one transaction, in a thread. A cancelled caller still has it made."""
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise CasSuperseded(f"{self._path} was closed")
            return await self._world.offload(self._transact, connection, work)

    def _transact(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]
    ) -> T:
        if self._broken is not None:
            raise self._broken
        try:
            if _identity(self._path) != self._file:
                raise self._break("it was deleted or replaced while this process has it open")
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                # A failed commit may be on disk all the same: no request is served after it, unless
                # it failed for lack of room, in which case SQLite promises that it left nothing.
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result
        except sqlite3.Error as exc:
            if exc.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise CasUnknown(f"the register {self._path}: {exc}: make room") from exc
            raise self._break(str(exc)) from exc

    def _break(self, reason: str) -> CasBroken:
        self._broken = CasBroken(
            f"the register {self._path} cannot be used any more: {reason}. Nothing is elected until"
            " that is repaired and this process is started again; a leader goes on while all that"
            " are in sync follow it"
        )
        return self._broken


async def open_sqlite(world: World, path: str) -> SqliteCas:
    """Open the file, creating it if absent.

    Raises `CasSuperseded` if another process has it, `CasBroken` if it is damaged or not ours.
    """
    connection = await world.offload(_open, path)
    try:
        await world.disk.sync_dir(_folder(path))  # its name
        return SqliteCas(world, path, connection)
    except BaseException:
        connection.close()
        raise


def _open(path: str) -> sqlite3.Connection:
    try:
        return _opened(path)
    except sqlite3.OperationalError as exc:
        if "locked" in str(exc):
            raise CasSuperseded(
                f"the register {path} is in use by another process: several controllers of the"
                " same groups need etcd; one with a file of its own would lead them apart"
            ) from exc
        raise CasBroken(f"the register {path} cannot be opened: {exc}") from exc
    except sqlite3.DatabaseError as exc:
        raise CasBroken(
            f"the register {path} is damaged: {exc}. Move it away and have the groups registered"
            " anew, or bring back a copy that is not older than the newest election"
        ) from exc
    except OSError as exc:
        raise CasBroken(f"the register {path} cannot be opened: {exc.strerror}") from exc


def _opened(path: str) -> sqlite3.Connection:
    os.makedirs(_folder(path), exist_ok=True)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")  # the lock, from now on
        with closing(connection.execute("PRAGMA quick_check(1)")) as rows:
            verdict = str(rows.fetchone()[0])
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        ours, form = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        elif ours != APPLICATION_ID:
            raise sqlite3.DatabaseError("it is a database of another program")
        elif form != FORMAT:
            raise sqlite3.DatabaseError(f"its format is {form}, this program knows {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file that has the name now."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
