"""Helpers that tests of containers share."""

import time
from collections.abc import Callable

WAIT_S = 120.0
ENDLESS = """
name = "endless"
steps = ["at 300s kill leader"]
[cluster]
brokers = 1
nameservers = 1
[load.producer]
count = 1
rate = 20.0
[recovery]
at = "400s"
drain = "5s"
"""


def wait_for(holds: Callable[[], object], condition: str) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, f"{condition} did not come about"
        time.sleep(0.05)
