"""Ending a command by a signal, with a complete clean-up."""

import signal


class Interruptible:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, with a complete clean-up.

    An interrupt may surface as another error: it is raised between any two instructions, and the
    clean-up may then fail itself (on a descriptor that is already closed). It leaves the block as a
    `KeyboardInterrupt` all the same.
    """

    def __enter__(self) -> None:
        self._previous = [
            (number, signal.signal(number, self._interrupt))
            for number in (signal.SIGTERM, signal.SIGHUP)
        ]

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)
        if isinstance(error, Exception) and was_interrupted(error):
            raise KeyboardInterrupt from error

    def _interrupt(self, _number: int, _frame: object) -> None:
        raise KeyboardInterrupt


def was_interrupted(error: BaseException) -> bool:
    """True if an error was raised while a `KeyboardInterrupt` was being handled."""
    cause: BaseException | None = error
    visited: set[int] = set()
    while cause is not None and id(cause) not in visited:
        if isinstance(cause, KeyboardInterrupt):
            return True
        visited.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False
