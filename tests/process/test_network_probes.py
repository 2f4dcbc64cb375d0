"""The doctor's rows of the network: they work where they can, and say what is missing elsewhere."""

import os

import pytest
import trio

from rocketbed.chaos.backends.process.network.proxied import ProxyNetwork
from rocketbed.chaos.backends.process.network.switch import network as switch_network
from rocketbed.chaos.doctor import network as network_probes
from rocketbed.chaos.doctor.network import (
    probe_loss,
    probe_proxy,
    probe_reset,
    probe_switch,
)
from rocketbed.chaos.doctor.probes import Broken, Missing
from rocketbed.chaos.doctor.report import doctor_rows, render_table
from rocketbed.chaos.run.links import LinkState

NAMES = ["net.switch", "net.loss.packet", "net.reset", "net.proxy"]


def test_the_proxy_works_everywhere() -> None:
    assert "delay and cut work" in probe_proxy()


def test_without_root_there_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for probe in (probe_switch, probe_loss):
        with pytest.raises(Missing, match="needs root"):
            probe()
    assert "proxy" in probe_reset()


def test_without_a_tun_device_there_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(switch_network, "TUN_DEVICE", "/dev/net/none")
    with pytest.raises(Missing, match="/dev/net/none"):
        probe_switch()


class Deaf(ProxyNetwork):
    """Takes orders and does nothing."""

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        await trio.lowlevel.checkpoint()

    async def reset(self, end_a: str, end_b: str) -> None:
        await trio.lowlevel.checkpoint()


def test_a_fault_that_does_not_happen_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_probes, "ProxyNetwork", Deaf)
    monkeypatch.setattr(network_probes, "missing_for_switch", lambda: "needs root")
    monkeypatch.setattr(network_probes, "ANSWER_S", 0.2)
    with pytest.raises(Broken):
        probe_proxy()
    with pytest.raises(Broken, match="the client saw a reset: False, the server: False"):
        probe_reset()


@pytest.mark.slow
def test_all_rows_work_here() -> None:
    rows = doctor_rows(NAMES)
    print(render_table(rows))
    assert {row.name: row.reason for row in rows if not row.works} == {}
    assert [row.name for row in rows] == NAMES
