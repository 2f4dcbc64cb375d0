"""A replica that finds its own log unreadable ends, so that somebody sees to it."""

from typing import NoReturn

import pytest

from rocketbed.node.store.errors import CorruptRecord
from tests.support.sim.failover_nodes import FailoverNodes


def test_a_follower_that_cannot_read_its_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> NoReturn:
        raise CorruptRecord("no record at 7", offset=7)

    with FailoverNodes() as group:
        group.simulation.tolerate_crashes = True
        leader = group.settle()
        others = [one for one in group.names if one != leader]
        for name in others:
            monkeypatch.setattr(group.nodes[name].store.epochs, "_undispatched", unreadable)
        group.simulation.kill(leader)
        group.wait(lambda: any(group.simulation.process(one).state == "dead" for one in others))
