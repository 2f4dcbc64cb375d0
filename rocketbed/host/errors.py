"""The error of what the host cannot do."""


class HostError(Exception):
    """The machine, or a program on it, cannot do what was asked; the message says what to do."""
