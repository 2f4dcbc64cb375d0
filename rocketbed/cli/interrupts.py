"""Ending a command from outside, with everything cleaned up."""

import signal


class Interruptible:
    """Within it SIGTERM and SIGHUP end the command as Ctrl-C does, with everything cleaned up."""

    def __enter__(self) -> None:
        self._previous = [
            (number, signal.signal(number, self._interrupt))
            for number in (signal.SIGTERM, signal.SIGHUP)
        ]

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: object) -> None:
        raise KeyboardInterrupt
