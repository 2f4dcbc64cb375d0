"""Independent reader of the store directories that RocketMQ or rocketbed writes.

It imports nothing else of this project, so that the checks of the testbed, `rocketbed store` and
the pipeline's cross-check rest on a second reading of the format. It needs no broker, holds a
bounded part of the files in memory, and never writes except in `rebuild`.
"""

from rocketbed.inspect.check.store import Report, check_store
from rocketbed.inspect.commitlog import CommitLog, Filler, Hole, LogEnd
from rocketbed.inspect.config import Settings, SettingsError
from rocketbed.inspect.directory import NotAStore, StoreDirectory, open_directory
from rocketbed.inspect.findings import Finding, Severity
from rocketbed.inspect.query import Filter, Message, messages
from rocketbed.inspect.rebuild import (
    RebuildRefused,
    RebuildReport,
    rebuild,
    rebuild_in_place,
)
from rocketbed.inspect.record import Fault, Record, Scanned

__all__ = [
    "CommitLog",
    "Fault",
    "Filler",
    "Filter",
    "Finding",
    "Hole",
    "LogEnd",
    "Message",
    "NotAStore",
    "RebuildRefused",
    "RebuildReport",
    "Record",
    "Report",
    "Scanned",
    "Settings",
    "SettingsError",
    "Severity",
    "StoreDirectory",
    "check_store",
    "messages",
    "open_directory",
    "rebuild",
    "rebuild_in_place",
]
