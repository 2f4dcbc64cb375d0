"""How a failure is shown whose text tells all: no traceback of code that is not the user's."""

import pytest
from _pytest._code.code import (
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)


def plain_longrepr(item: pytest.Item, text: str) -> ReprExceptionInfo:
    """pytest's own form, of plain lines, at the place of the test."""
    lines = [f"E   {line}\n" for line in text.splitlines()]
    path, line, _ = item.location
    return ReprExceptionInfo(
        reprtraceback=ReprTraceback([ReprEntryNative(lines)], None, style="native"),
        reprcrash=ReprFileLocation(path, (line or 0) + 1, text.splitlines()[0]),
    )
