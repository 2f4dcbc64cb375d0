"""Choice of the function that takes plain sends: in Python, always available, or in C.

Both do the same (tests/property/test_plain_native.py), so the choice affects only the time and a
line of the log. The C module is next to this file if there was a C compiler when rocketbed was
installed. `rocketbed node` uses it unless `RB_NATIVE=0`; all other callers only with
`rbNative=true`, so that a simulation runs the same everywhere.
"""

from rocketbed.node.broker import plain_run
from rocketbed.node.broker.plain_run import Body


def choose(*, native: bool) -> tuple[Body, str]:
    """Return the function, and its name for the log."""
    if not native:
        return plain_run.take, "python, as rbNative or RB_NATIVE says"
    try:
        from rocketbed.node.broker import plain_native
    except ImportError as exc:
        return plain_run.take, f"python, as there is no native one ({exc})"
    return plain_native.take, "native"
