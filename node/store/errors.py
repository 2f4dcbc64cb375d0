"""Errors of a store; each says what happened, where, and what to do."""

from typing import ClassVar

from rocketbed.node.store.status import PutStatus
from rocketbed.wire.errors import RocketbedError


class StoreError(RocketbedError):
    """Base of the store's errors."""


class StoreLocked(StoreError):
    """Another process holds the directory."""


class BadStoreDirectory(StoreError):
    """The directory cannot be served in its state; nothing in it was changed."""


class DamagedLog(StoreError):
    """A record that was durable can no longer be read. It is never cut off automatically."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        """Physical offset of the first bad byte."""


class StoreFailed(StoreError):
    """The disk failed under a running store; the node stops and leaves its abort file."""


class MessageRejected(StoreError):
    """A message that the store refuses; the run it was meant for is unchanged."""

    response_code: ClassVar[int] = 13

    def __init__(self, status: PutStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class PutFailed(StoreError):
    """A whole run of messages was refused; none of them is in the log."""

    def __init__(self, status: PutStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class CorruptRecord(StoreError):
    """Bytes at an offset are not the expected record."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset
