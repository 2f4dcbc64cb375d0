"""Findings and actions of a boot, for the log, the runtime info and the tests."""

from dataclasses import dataclass, field

from rocketbed.node.store.evidence import UNKNOWN


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """Findings and actions of a boot. Offsets and sizes in bytes."""

    was_clean: bool = False
    """True if the last stop was clean."""
    took_over: bool = False
    """True if the durable mark was not trusted: something else changed the directory."""
    by_hand: bool = False
    """True if the other program left traces beside our mark."""
    reason: str = ""
    """Reason why it was not trusted."""
    scanned_from: int = 0
    end: int = 0
    """End of the log after recovery."""
    records: int = 0
    """Records that were scanned and dispatched."""
    last_durable: int = UNKNOWN
    """End of the log that was known to be on disk before the crash; -1 if unknown."""
    cut_bytes: int = 0
    cut_records: int = 0
    """Whole records among the bytes that were cut off (a power loss may leave some)."""
    cut_copy: str = ""
    """Path of the copy of those bytes."""
    clock_steps: int = 0
    """Records with an earlier store time than the previous one."""
    dropped_records: int = 0
    """Records of deleted topics that were not dispatched again (T14)."""
    unknown_topics: dict[str, None] = field(default_factory=dict)
    """Those among them that were deleted before this node had the directory."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """Sentences for the operator."""
