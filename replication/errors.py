"""Errors of replication."""

from typing import ClassVar

from rocketbed.wire.codes import ResponseCode
from rocketbed.wire.errors import RocketbedError


class ReplicationError(RocketbedError):
    """Base of this folder's errors."""


class LogDiverged(ReplicationError):
    """A slave holds other bytes than its master. It stops following (design.md 13)."""

    def __init__(self, text: str, *, offset: int) -> None:
        super().__init__(text)
        self.offset = offset
        """First offset, bytes, at which the two logs are known to differ."""


class NothingInCommon(ReplicationError):
    """A slave that may cut its log found no record that its master has too."""


class CutRefused(ReplicationError):
    """A log could not be cut; it is unchanged."""


class MasterBehind(ReplicationError):
    """A slave holds bytes that its master does not have."""


class SegmentMismatch(ReplicationError):
    """Master and slave split their logs into files of different sizes."""


class OffsetMismatch(ReplicationError):
    """A frame does not continue where the previous one ended."""


class ReplicationPortTaken(ReplicationError):
    """The replication port cannot be listened on."""


class MetadataRefused(ReplicationError):
    """A master does not serve its topics on this port."""


class SlaveRefused(ReplicationError):
    """A peer on the replication port that cannot be served."""


class HistoryRefused(ReplicationError):
    """An epoch history that no log can have."""


class Superseded(ReplicationError):
    """A change is based on a register entry that is out of date."""

    response_code: ClassVar[int] = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH


class ChangeRefused(ReplicationError):
    """A change that the rules of the in-sync set forbid (replication.md 7.5)."""

    response_code: ClassVar[int] = ResponseCode.CONTROLLER_INVALID_REQUEST


class NoRoom(ReplicationError):
    """The disk is full, or no more files can be opened: nothing was written, and the old contents
    are unchanged."""


class EntryDamaged(ReplicationError):
    """The register's entry of a group cannot be read."""


class RegisterOlder(EntryDamaged):
    """The register's entry of a group is older than a replica's knowledge of it."""


class GroupUnknown(ReplicationError):
    """No replica of the group ever registered."""

    response_code: ClassVar[int] = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


class NumberTaken(ReplicationError):
    """An empty directory has to wait: the replica under its number may run, or be needed."""


class ReplicaExpelled(ReplicationError):
    """The register knows a newer incarnation of a replica, or another directory: it must stop."""


class EpochFileDamaged(ReplicationError):
    """A replica's record of epochs cannot be read."""


class LinkRefused(ReplicationError):
    """A leader and a follower that cannot work together; the text says why."""


class RecordRefused(LinkRefused):
    """Data from a leader is not a whole, good record."""

    def __init__(self, text: str, *, offset: int) -> None:
        super().__init__(text)
        self.offset = offset
        """Start of the bad record in the log, bytes."""
