"""Which body takes plain sends: the Python one, which is always there, or the native one.

Both do the same (tests/property/test_plain_native.py), so nothing but the time it takes and a line
of the log depends on it. The native one is a file beside this one, where there was a C compiler
when rocketbed was installed. `rocketbed node` wants it unless `RB_NATIVE=0`; nobody else does who
does not say `rbNative=true`: a simulation runs the same everywhere.
"""

from rocketbed.node.broker import plain_run
from rocketbed.node.broker.plain_run import Body


def choose(*, wanted: bool) -> tuple[Body, str]:
    """The body, and which one it is, for the log."""
    if not wanted:
        return plain_run.take, "python, as rbNative or RB_NATIVE says"
    try:
        from rocketbed.node.broker import plain_native
    except ImportError as exc:
        return plain_run.take, f"python, as there is no native one ({exc})"
    return plain_native.take, "native"
