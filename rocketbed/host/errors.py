"""Error of an operation that the host cannot do."""


class HostError(Exception):
    """The machine, or a program on it, cannot do what was asked; the message says what to do."""
