"""Choice of a run's network, with root and without."""

import os
from typing import cast

import pytest

from rocketbed.chaos.backends.process.network import choice as networks
from rocketbed.chaos.backends.process.network.choice import Net, make_network
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

PLAN = load_scenario("half-open").plan(1)


@pytest.mark.parametrize(
    ("net", "missing", "expected"),
    [
        ("auto", None, "switch"),
        ("auto", "needs root", "proxy"),
        ("switch", None, "switch"),
        ("proxy", None, "proxy"),
        ("plain", "needs root", "plain"),
    ],
)
def test_the_best_network_that_can_be_had(
    monkeypatch: pytest.MonkeyPatch, net: Net, missing: str | None, expected: str
) -> None:
    monkeypatch.setattr(networks, "missing_for_switch", lambda: missing)
    with Ledger.begin(guard=False) as run:
        network = make_network(net, PLAN, run)
        assert network.name == expected
        assert (network.lacks("net.cut") is None) == (expected != "plain")


def test_unavailable_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="needs root"):
        make_network("switch", PLAN, cast(Ledger, None))
