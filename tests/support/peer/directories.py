"""Findings of the independent reader in the directories that a test left."""

from pathlib import Path

from rocketbed.inspect import LogEnd, Severity, check_store, open_directory


def assert_sound(store: Path, worst: Severity = Severity.NOTE) -> None:
    """No finding of `rocketbed store fsck` is graver than `worst`."""
    directory = open_directory(store)
    try:
        report = check_store(directory)
    finally:
        directory.close()
    grave = [finding for finding in report.findings if finding.severity > worst]
    assert grave == [], f"{store}: {grave[:5]}"
    assert report.records > 0


def assert_logs_equal(first: Path, second: Path, *, segments: int) -> None:
    """Both logs begin at 0, have at least so many segments, and are equal byte for byte."""
    directories = [open_directory(store) for store in (first, second)]
    try:
        logs = [directory.log for directory in directories]
        ends = [next(item for item in log.scan() if isinstance(item, LogEnd)) for log in logs]
        assert ends[0].offset == ends[1].offset
        assert [log.min_offset for log in logs] == [0, 0]
        assert min(len(log.segments) for log in logs) >= segments
        assert logs[0].read(0, ends[0].offset) == logs[1].read(0, ends[0].offset)
    finally:
        for directory in directories:
            directory.close()
