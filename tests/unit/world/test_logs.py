"""Log lines that come again and again: said a few times, then counted."""

import logging

import pytest

from rocketbed.world.logs import PERIOD_S, REPEATS, StandardLog


def test_repeated_line_is_counted_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    log = StandardLog("b1", lambda: now[0])
    caplog.set_level(logging.INFO)
    for number in range(REPEATS + 90):
        log.info("store.odd", offset=number, reason="full")
    log.info("store.odd", offset=1, reason="another")
    assert len(caplog.messages) == REPEATS + 1
    now[0] = PERIOD_S
    log.info("store.odd", offset=7, reason="full")
    assert caplog.messages[-1] == "store.odd offset=7 reason=full repeated=90"
    log.info("store.odd", offset=8, reason="full")
    assert caplog.messages[-1] == "store.odd offset=8 reason=full"
