"""What a boot found and did, for the log, the runtime info and the tests."""

from dataclasses import dataclass, field

from rocketbed.node.store.evidence import UNKNOWN


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What a boot found and did. Offsets and sizes in bytes."""

    was_clean: bool = False
    """The last stop was clean."""
    took_over: bool = False
    """The durable mark was not trusted: something else changed the directory."""
    by_hand: bool = False
    """That something else was seen, by what it left beside our mark."""
    reason: str = ""
    """Why it was not trusted."""
    scanned_from: int = 0
    end: int = 0
    """End of the log after recovery."""
    records: int = 0
    """Records that were scanned and dispatched."""
    last_durable: int = UNKNOWN
    """Below this the log was known to be on disk before the crash; -1 when nothing was known."""
    cut_bytes: int = 0
    cut_records: int = 0
    """Whole records among the bytes that were cut off (a power loss may leave some)."""
    cut_copy: str = ""
    """Where those bytes were kept."""
    clock_steps: int = 0
    """Records with an earlier store time than the one before."""
    dropped_records: int = 0
    """Records of deleted topics that were not dispatched again (T14)."""
    unknown_topics: dict[str, None] = field(default_factory=dict)
    """Those among them that were deleted before this node had the directory."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """Sentences for the operator."""
