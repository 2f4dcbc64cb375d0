"""Events with fields, logged through the standard `logging`, so that a user's own set-up applies.

The first word of an event names its component: `store.recovered` goes to the logger
`rocketbed.store`. A line reads `store.recovered offset=4096 seconds=0.2`; the record has the node's
name as `node` for formatters that want it. A line that repeats often is only counted, and logged
once a minute.
"""

import logging
from collections.abc import Callable

REPEATS = 10
"""Lines of one kind in a minute before further ones are only counted."""
PERIOD_S = 60.0
_KINDS_MAX = 1000


class StandardLog:
    def __init__(self, node: str, seconds: Callable[[], float]) -> None:
        """`seconds` is a clock that never goes back."""
        self._seconds = seconds
        self._extra = {"node": node}
        self._loggers: dict[str, logging.Logger] = {}
        self._repeats: dict[tuple[object, ...], tuple[float, int]] = {}
        """Kind of line -> start of its minute, and its number of lines since."""

    def debug(self, event: str, **fields: object) -> None:
        """Log an event for someone who follows one message."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log an event for someone who follows the node."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should look at."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: dict[str, object]) -> None:
        folder = event.partition(".")[0]
        logger = self._loggers.get(folder)
        if logger is None:
            logger = self._loggers[folder] = logging.getLogger(f"rocketbed.{folder}")
        if logger.isEnabledFor(level) and self._is_due(level, event, fields):
            logger.log(level, "%s", render(event, fields), extra=self._extra)

    def _is_due(self, level: int, event: str, fields: dict[str, object]) -> bool:
        """True if the line is to be logged; `fields` then gets the number of suppressed lines.

        Lines are of the same kind if they differ only in numbers.
        """
        if level == logging.DEBUG:
            return True
        kind = (event, *(value for value in fields.values() if isinstance(value, str)))
        now = self._seconds()
        began, count = self._repeats.get(kind, (now, 0))
        if now - began >= PERIOD_S:
            if count > REPEATS:
                fields["repeated"] = count - REPEATS
            began, count = now, 0
        if len(self._repeats) >= _KINDS_MAX:
            self._repeats.clear()
        self._repeats[kind] = (began, count + 1)
        return count < REPEATS


def render(event: str, fields: dict[str, object]) -> str:
    """Format `event key=value ...`; a value that is empty or has a space or a quote is quoted."""
    words = [event]
    for key, value in fields.items():
        text = str(value)
        if not text or any(character in text for character in ' "=\n'):
            text = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        words.append(f"{key}={text}")
    return " ".join(words)
