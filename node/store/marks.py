"""The durable marks W and F, and their companions (store.md 8.6).

RocketMQ infers from timestamps where recovery has to begin; that loses messages after a power loss
(T1). Two files in the root, which RocketMQ ignores, hold proof instead:

`rocketbed.ckpt`: W and its companions; replaced by temp file, fsync, rename, directory fsync.

`rocketbed.flushed`: F, 16 bytes, overwritten without fsync after each log fsync; any value found
there is true, because it was true when it was written.
"""

import struct
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass, field, replace
from functools import partial

import crcmod.predefined
import orjson
import trio

from rocketbed.node.store.errors import StoreError, StoreFailed
from rocketbed.node.store.failure import Failure
from rocketbed.node.store.files import SHORTAGES, read_whole
from rocketbed.node.store.index import pack_header, unpack_header
from rocketbed.node.store.indexfile import Header
from rocketbed.world.api import World

CKPT_NAME = "rocketbed.ckpt"
FLUSHED_NAME = "rocketbed.flushed"
INDEX_OFF = "it was switched off (messageIndexEnable=false) meanwhile"
"""Entry of `Mark.index_damage` for an index that lacks messages."""
_FIRST_LINE = b"rocketbed-ckpt 1"
_FLUSHED = struct.Struct(">qQ")
_crc32c: Callable[[bytes], int] = crcmod.predefined.mkCrcFun("crc-32c")


@dataclass(frozen=True, slots=True)
class AcceptedCut:
    """A cut below F that an operator ordered (`rbAcceptCut`). It stays on record."""

    offset: int
    """New end of the log."""
    flushed: int
    """F before the cut: the log had been on disk up to there."""
    messages: int
    """Most acknowledged messages that may have been lost."""
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The durable mark and its companions.

    Invariant: the log, every queue unit and every index entry of records below `offset` are
    fsynced; `offset` is the end of the record at `record_start`, or the log's beginning.
    """

    store_id: str
    """Random, one per directory; the abort file repeats it."""
    offset: int
    """W: end of a record, physical offset."""
    sizes: tuple[int, ...] = ()
    """Lengths of the directory's files: segments of log, queues and batch queues, slots and entries
    of an index file."""
    record_start: int = -1
    """Start of the record that ends at W, -1 when W is the beginning of the log."""
    queue_count: int = 0
    queue_total: int = 0
    """Number of queues, and sum of their next offsets, at W."""
    queue_first: int = -1
    """Sum of the first units of queues that hold any, at W; -1 during retention."""
    index: tuple[str, Header] | None = None
    """Newest index file and its header at W."""
    index_filled_ms: int = 0
    """End time of the last full index file."""
    cut_to: int | None = None
    """Target of an unfinished cut."""
    clean: str | None = None
    """Hex of the checkpoint's first 40 bytes, after a clean stop."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Deleted topics, each with the end of the log at that moment (T14); never above the log's end,
    so that a later record of a recreated topic is not taken for one of the deleted."""
    remaking: tuple[str, ...] = ()
    """Topics whose queues are being rebuilt from the log: a start that finds any rebuilds all
    queues."""
    first: int = -1
    """Beginning of the log, as retention left it or is about to; -1 in marks without it."""
    claimed: dict[str, int] = field(default_factory=dict)
    """Next offsets by `topic/queue` of a foreign directory's queues. Stored until a start has
    compared them with the log, since the queues are rebuilt meanwhile."""
    accepted: tuple[AcceptedCut, ...] = ()
    scrubbed: int = 0
    """Progress of the scrub; 0 once it has finished."""
    damage: tuple[tuple[int, int, str], ...] = ()
    """Findings of the scrub: beginning, end, reason."""
    index_damage: str = ""
    """Damage that the scrub found in the index: it is rebuilt at the next start."""
    index_tags: bool = False
    """True if the index contains tags too, as that of a RocketMQ 5.5.0 that had the directory
    before."""
    followed: str | None = ""
    """Address of the master that this log followed last, on a slave; None if the mark with it was
    lost."""
    inherited: int = -1
    """End of the log when another program's directory was taken over; -1 if it never was. A topic
    of earlier records that neither the table nor a queue knows was deleted before (T14)."""
    resend_to: int = -1
    """Former end on disk of this slave's log, which a start cut to its good part: until a master
    has sent that again, the node cannot be a master. -1 if nothing is missing."""

    def deleted_below(self, end: int) -> dict[str, int]:
        """Return `deleted` for a log that ends at `end`."""
        return {topic: min(at, end) for topic, at in self.deleted.items()}


def encode_mark(mark: Mark) -> bytes:
    """Return the mark as three lines: kind and version, JSON, CRC-32C of the JSON."""
    document = {
        "id": mark.store_id,
        "w": mark.offset,
        "sizes": mark.sizes,
        "record": mark.record_start,
        "units": [mark.queue_count, mark.queue_total],
        "index": [mark.index[0], pack_header(mark.index[1])] if mark.index else None,
        "index_filled_ms": mark.index_filled_ms,
        "cut": mark.cut_to,
        "clean": mark.clean,
        "deleted": mark.deleted,
        "remaking": mark.remaking,
        "first": mark.first,
        "queue_first": mark.queue_first,
        "followed": mark.followed,
        "owed": mark.resend_to,
        "inherited": mark.inherited,
        "index_damage": mark.index_damage,
        "index_tags": mark.index_tags,
        "scrubbed": mark.scrubbed,
        "damage": mark.damage,
        "claimed": mark.claimed,
        "accepted": [astuple(cut) for cut in mark.accepted],
    }
    text = orjson.dumps(document)
    return b"%s\n%s\n%08x\n" % (_FIRST_LINE, text, _crc32c(text))


def decode_mark(data: bytes) -> Mark | None:
    """Return the mark of such lines; None for anything that is not a whole, valid mark."""
    lines = data.split(b"\n")
    if len(lines) != 4 or lines[0] != _FIRST_LINE or b"%08x" % _crc32c(lines[1]) != lines[2]:
        return None
    document = orjson.loads(lines[1])
    index = document["index"]
    return Mark(
        store_id=document["id"],
        offset=document["w"],
        sizes=tuple(document["sizes"]),
        record_start=document["record"],
        queue_count=document["units"][0],
        queue_total=document["units"][1],
        index=(index[0], unpack_header(index[1])) if index else None,
        index_filled_ms=document["index_filled_ms"],
        cut_to=document["cut"],
        clean=document["clean"],
        deleted=document["deleted"],
        remaking=tuple(document.get("remaking", ())),
        queue_first=document.get("queue_first", -1),
        first=document.get("first", -1),
        scrubbed=document.get("scrubbed", 0),
        damage=tuple(tuple(finding) for finding in document.get("damage", ())),
        index_damage=document.get("index_damage", ""),
        index_tags=document.get("index_tags", False),
        followed=document.get("followed", ""),
        resend_to=document.get("owed", -1),
        inherited=document.get("inherited", -1),
        claimed=document.get("claimed", {}),
        accepted=tuple(AcceptedCut(*cut) for cut in document.get("accepted", ())),
    )


class Marks:
    """Reads and writes both files of one store directory."""

    def __init__(self, world: World, root: str, staging: str, failure: Failure) -> None:
        self._world = world
        self._failure = failure
        self._root = root
        self._staging = staging
        self._path = f"{root}/{CKPT_NAME}"
        self._flushed_path = f"{root}/{FLUSHED_NAME}"
        self.mark = Mark(store_id="", offset=0)
        """The mark on disk."""
        self.is_sure = True
        """True if `mark` names the followed master that a power loss would leave: not from the
        rename of a mark with another one until its name is on disk, even if the waiting task was
        cancelled."""
        self._lock = trio.Lock()
        """Held while the file is replaced."""

    def load(self) -> Mark | None:
        """Return the stored mark, None if there is no whole one."""
        mark = decode_mark(read_whole(self._world, self._path) or b"")
        if mark is not None:
            self.mark = mark
        return mark

    async def store(self, mark: Mark) -> None:
        """Replace the mark, durably; raises as `update` does."""
        async with self._lock:
            await self._replace(mark)

    async def update(self, **changes: object) -> None:
        """Replace some fields of the mark, durably. Raises `OSError` if it cannot be written;
        `StoreFailed` if its sync fails, and the store has failed then."""
        async with self._lock:
            await self._replace(replace(self.mark, **changes))  # type: ignore[arg-type]

    async def _replace(self, mark: Mark) -> None:
        disk = self._world.disk
        temporary = f"{self._staging}/{CKPT_NAME}.new"
        disk.makedirs(self._staging)
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = disk.open(temporary, create=True)
        try:
            file.write_at(0, encode_mark(mark))
            await self._synced(file.sync)
        finally:
            file.close()
        self.is_sure = self.is_sure and mark.followed == self.mark.followed
        disk.rename(temporary, self._path)
        self._world.mark("store.mark_renamed")
        await self._synced(partial(disk.sync_dir, self._root))
        self.mark = mark
        self.is_sure = True
        self._world.mark("store.mark_stored")

    async def _synced(self, sync: Callable[[], Awaitable[None]]) -> None:
        try:
            await sync()
        except OSError as exc:
            if exc.errno in SHORTAGES:  # all of it is written again the next time
                raise
            raise self.failed(exc) from exc

    def failed(self, exc: OSError) -> StoreError:
        """Fail the store with the error that kept the mark from being written."""
        return self._failure.set(
            StoreFailed(
                f"the durable mark of {self._root} cannot be written: {exc.strerror}; check the"
                " disk, then start the node again"
            )
        )

    def load_flushed(self) -> int | None:
        """Return F, or None if it is not known."""
        value = self._stored_flushed()
        return None if value is None or value < 0 else value

    @property
    def has_traces(self) -> bool:
        """True if a start of rocketbed left a file here, whole or not."""
        disk = self._world.disk
        return disk.exists(self._path) or disk.exists(self._flushed_path)

    @property
    def has_lost_flushed(self) -> bool:
        """True if the file of F, which every start writes, is missing or damaged."""
        return self._stored_flushed() is None

    def _stored_flushed(self) -> int | None:
        """Return the value in the file, -1 for unknown; None without a whole one."""
        data = read_whole(self._world, self._flushed_path) or b""
        if len(data) != _FLUSHED.size:
            return None
        value, check = _FLUSHED.unpack(data)
        return int(value) if check == _crc32c(data[:8]) else None

    async def store_flushed(self, value: int | None, *, durable: bool = False) -> None:
        """Write F after an fsync of the log; None marks it as unknown."""
        packed = struct.pack(">q", -1 if value is None else value)
        file = self._world.disk.open(self._flushed_path, create=True)
        try:
            file.write_at(0, packed + struct.pack(">Q", _crc32c(packed)))
            if durable:
                await file.sync()
        finally:
            file.close()
