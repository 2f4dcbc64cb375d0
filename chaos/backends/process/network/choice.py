"""Choice of the network between a run's machines."""

from typing import Literal

from rocketbed.chaos.backends.process.network.base import Machines, Network, PlainNetwork
from rocketbed.chaos.backends.process.network.proxied import ProxyNetwork
from rocketbed.chaos.backends.process.network.switch.network import (
    SwitchNetwork,
    missing_for_switch,
)
from rocketbed.chaos.plan.plan import Plan
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

Net = Literal["auto", "plain", "proxy", "switch"]


def make_network(net: Net, plan: Plan, run: Ledger) -> Network:
    """Return the requested network; `auto` is the switch if it is available, else the proxy.

    Raises `HostError` if it is not available.
    """
    machines = Machines.of(plan)
    if is_switch(net, instead="proxy"):
        return SwitchNetwork(machines, run=run)
    return PlainNetwork(machines) if net == "plain" else ProxyNetwork(machines)


def is_switch(net: Net, *, instead: Net) -> bool:
    """Return whether the machines get the switch: it was requested, or is available.

    Raises `HostError` if it was requested and is not available.
    """
    missing = missing_for_switch()
    if net == "switch" and missing is not None:
        raise HostError(f"--net switch: {missing}; --net {instead} does not need it")
    return net in ("auto", "switch") and missing is None
