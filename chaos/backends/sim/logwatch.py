"""Written and durable end of a simulated node's log, derived from the disk's own events.

The node's opinion of what is flushed is on trial, so it is not asked. Source: chaos.md 2.3.
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
    """End of the bytes that a completed sync covers."""
    syncs: list[int] = field(default_factory=list)
    """Written end at the beginning of each sync under way."""
    forsaken: tuple[int, int] | None = None
    """Range that a failed sync left marked clean: no later sync writes it out before it is written
    again."""
    is_named: bool = False
    """True if its directory was synced since it was created: else a power cut may remove it."""


class LogWatch:
    """Follows one node's disk over all its incarnations."""

    def __init__(self, trace: NodeTrace) -> None:
        self.trace = trace
        self._segments: dict[int, _Segment] = {}
        self._naming: list[list[_Segment]] = []
        """For each sync of the directory under way the segments that it covers."""

    def saw(self, time_ns: int, kind: str, path: str, offset: int, size: int) -> None:
        """Handle an event of the disk; only those of the log matter."""
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
        """Return the end of the durable part, extended to the end of its segment if nothing in that
        is unsynced: what follows a blank record is never written."""
        durable = self.ends().durable
        start = durable - durable % segment_size
        segment = self._segments.get(start)
        if segment is None or segment.durable < segment.written or durable == start:
            return durable
        return start + segment_size

    def lost_power(self, time_ns: int) -> None:
        """Note that the node lost what was not on disk; what survives beyond that shows at its
        recovery."""
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
        """Note where the node found its log to end. After a power cut all of that was on disk, and
        later segments may be other files."""
        if is_durable:
            self._segments = {
                start: segment for start, segment in self._segments.items() if start < end
            }
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
    """Handle an event of a segment. Return whether an end may have moved."""
    if kind == "write":
        _rewrite(segment, offset, offset + size)
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


def _rewrite(segment: _Segment, begin: int, end: int) -> None:
    """Note a write to forsaken bytes: from its beginning on they are dirty again."""
    if segment.forsaken is not None and begin <= segment.forsaken[0]:
        begin_dirty = max(segment.forsaken[0], end)
        segment.forsaken = (
            (begin_dirty, segment.forsaken[1]) if begin_dirty < segment.forsaken[1] else None
        )
