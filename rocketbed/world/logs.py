"""Events with fields through the standard `logging`, so that a user's own set-up applies.

The first word of an event names the part it comes from: `store.recovered` goes to the logger
`rocketbed.store`. A line reads `store.recovered offset=4096 seconds=0.2`; the record carries the
node's name as `node` for formatters that want it. A line that comes again and again is counted
after a while, and said once a minute.
"""

import logging
from collections.abc import Callable

REPEATS = 10
"""Lines of one kind in a minute before the next ones are only counted."""
PERIOD_S = 60.0
_KINDS_MAX = 1000


class StandardLog:
    def __init__(self, node: str, seconds: Callable[[], float]) -> None:
        """`seconds` is a clock that never goes back."""
        self._seconds = seconds
        self._extra = {"node": node}
        self._loggers: dict[str, logging.Logger] = {}
        self._repeats: dict[tuple[object, ...], tuple[float, int]] = {}
        """Kind of line -> when its minute began, and how many there were since."""

    def debug(self, event: str, **fields: object) -> None:
        """For someone who follows one message."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """For someone who follows the node."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something an operator should look at."""
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
        """Whether the line is said; `fields` then says how many before it were not.

        Lines are of one kind if they differ in numbers only.
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
    """`event key=value ...`; a value with a space, a quote or nothing in it is quoted."""
    words = [event]
    for key, value in fields.items():
        text = str(value)
        if not text or any(character in text for character in ' "=\n'):
            text = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        words.append(f"{key}={text}")
    return " ".join(words)
