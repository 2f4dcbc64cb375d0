"""Events with fields through the standard `logging`, so that a user's own set-up applies.

The first word of an event names the part it comes from: `store.recovered` goes to the logger
`rocketbed.store`. A line reads `store.recovered offset=4096 seconds=0.2`; the record carries the
node's name as `node` for formatters that want it.
"""

import logging


class StandardLog:
    def __init__(self, node: str) -> None:
        self._extra = {"node": node}
        self._loggers: dict[str, logging.Logger] = {}

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
        if logger.isEnabledFor(level):
            logger.log(level, "%s", render(event, fields), extra=self._extra)


def render(event: str, fields: dict[str, object]) -> str:
    """`event key=value ...`; a value with a space, a quote or nothing in it is quoted."""
    words = [event]
    for key, value in fields.items():
        text = str(value)
        if not text or any(character in text for character in ' "=\n'):
            text = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        words.append(f"{key}={text}")
    return " ".join(words)
