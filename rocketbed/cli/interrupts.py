"""Ending a command from outside, with everything cleaned up."""

import signal


class Interruptible:
    """Within it SIGTERM and SIGHUP end the command as Ctrl-C does, with everything cleaned up.

    An interrupt may come to light as another error: it is raised between any two instructions, and
    what cleans up then may fail in its turn (a descriptor that was closed already). It leaves as a
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
    """Whether an error came up while a `KeyboardInterrupt` was on its way."""
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        if isinstance(one, KeyboardInterrupt):
            return True
        seen.add(id(one))
        one = one.__cause__ or one.__context__
    return False
