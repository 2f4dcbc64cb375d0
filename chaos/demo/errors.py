"""What the demo cannot be run with."""


class DemoError(Exception):
    """An option that cannot be used; the message says why."""
