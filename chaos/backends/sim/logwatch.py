"""How far a simulated node's log reaches and is on disk, read off the disk's own events.

The node's opinion of what is flushed is on trial, so nothing here asks it. Source: chaos.md 2.3.
"""

from dataclasses import dataclass, field

from rocketbed.chaos.evidence.trace import Ends, NodeTrace

STORE = "/store"
"""The directory of the store on every disk."""
COMMIT_LOG = f"{STORE}/commitlog/"


@dataclass(slots=True)
class _Segment:
    written: int = 0
    """End of the bytes written, in the file."""
    durable: int = 0
    """End of those that a completed sync covers."""
    syncs: list[int] = field(default_factory=list)
    """What was written when each sync under way began."""
    forsaken: tuple[int, int] | None = None
    """What a failed sync left marked clean: no later sync brings it to disk before it is written
    again."""
    is_named: bool = False
    """Whether its directory was synced since it was made: else a power cut may take it all."""


class LogWatch:
    """Follows one node's disk over all its incarnations."""

    def __init__(self, trace: NodeTrace) -> None:
        self.trace = trace
        self._segments: dict[int, _Segment] = {}
        self._naming: list[list[_Segment]] = []
        """Segments that each sync of the directory under way will have named."""

    def saw(self, time_ns: int, kind: str, path: str, offset: int, size: int) -> None:
        """An event of the disk; others than the log's are ignored."""
        if f"{path}/" == COMMIT_LOG:
            if kind == "sync_dir":
                self._naming.append(list(self._segments.values()))
            elif kind == "sync_dir_end" and self._naming:
                for segment in self._naming.pop(0):
                    segment.is_named = True
                self.trace.add(time_ns, *self.ends())
            return
        if not path.startswith(COMMIT_LOG):
            return
        name = path[len(COMMIT_LOG) :]
        if not name.isdigit():
            return
        start = int(name)
        if kind == "unlink":
            self._segments.pop(start, None)
        else:
            segment = self._segments.setdefault(start, _Segment())
            if not _change(segment, kind, offset, size):
                return
        self.trace.add(time_ns, *self.ends())

    def ends(self) -> Ends:
        written = durable = 0
        contiguous = True
        for start in sorted(self._segments):
            segment = self._segments[start]
            if segment.written:
                written = start + segment.written
            contiguous = contiguous and segment.is_named
            if contiguous:
                durable = max(durable, start + segment.durable if segment.durable else 0)
                contiguous = segment.durable >= segment.written
        return Ends(written, durable)

    def covered(self, segment_size: int) -> int:
        """Where the durable part ends; to the end of its segment if nothing in that is unsynced:
        what follows a blank record is never written."""
        durable = self.ends().durable
        start = durable - durable % segment_size
        segment = self._segments.get(start)
        if segment is None or segment.durable < segment.written or durable == start:
            return durable
        return start + segment_size

    def lost_power(self, time_ns: int) -> None:
        """The node lost what was not on disk; what stays beyond that shows at its recovery."""
        for segment in self._segments.values():
            segment.written = min(segment.written, segment.durable)
            segment.forsaken = None
        self.died()
        self.trace.add(time_ns, *self.ends())

    def died(self) -> None:
        for segment in self._segments.values():
            segment.syncs.clear()
        self._naming.clear()

    def recovered(self, time_ns: int, end: int, segment_size: int, *, is_durable: bool) -> None:
        """The node found its log to end here; after a power cut all of that was on disk, and what
        stands behind it may be another file (seed 872035)."""
        if is_durable:
            self._segments = {start: one for start, one in self._segments.items() if start < end}
        for start, segment in self._segments.items():
            limit = min(max(end - start, 0), segment_size)
            if is_durable:
                segment.written = segment.durable = limit
                segment.is_named = True
            else:
                segment.written = min(segment.written, limit)
                segment.durable = min(segment.durable, limit)
        self.trace.add(time_ns, *self.ends())

    def wiped(self, time_ns: int) -> None:
        self._segments.clear()
        self.trace.add(time_ns, 0, 0)


def _change(segment: _Segment, kind: str, offset: int, size: int) -> bool:
    """Take an event in; whether an end may have moved."""
    if kind == "write":
        _write_again(segment, offset, offset + size)
        if offset + size <= segment.written:
            return False
        segment.written = offset + size
    elif kind == "zero" or kind == "truncate":
        if kind == "zero" and offset + size < segment.written:
            return False  # a hole within the log, not its end
        cut = offset if kind == "zero" else size
        if cut >= segment.written:
            return False
        segment.written = cut
        segment.durable = min(segment.durable, cut)
        segment.syncs = [min(end, cut) for end in segment.syncs]
    elif kind == "sync":
        segment.syncs.append(segment.written)
        return False
    elif kind == "sync_end" and segment.syncs:
        end = segment.syncs.pop(0)
        if segment.forsaken is not None:
            end = min(end, segment.forsaken[0])
        segment.durable = max(segment.durable, end)
    elif kind == "sync_failed" and segment.syncs:
        end = segment.syncs.pop(0)
        if end > segment.durable:
            segment.forsaken = (segment.durable, end)
        return False
    elif kind == "sync_lost" and segment.syncs:
        segment.syncs.pop(0)
        return False
    else:
        return False
    return True


def _write_again(segment: _Segment, begin: int, end: int) -> None:
    """Take a write in where bytes were forsaken: those from their beginning on are dirty again."""
    if segment.forsaken is not None and begin <= segment.forsaken[0]:
        left = max(segment.forsaken[0], end)
        segment.forsaken = (left, segment.forsaken[1]) if left < segment.forsaken[1] else None
