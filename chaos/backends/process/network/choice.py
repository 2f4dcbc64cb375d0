"""Choice of the network between a run's machines."""

from typing import Literal

from rocketbed.chaos.backends.process.network.fabric import Fabric, Machines, PlainFabric
from rocketbed.chaos.backends.process.network.proxy_fabric import ProxyFabric
from rocketbed.chaos.backends.process.network.switch.fabric import SwitchFabric, missing_for_switch
from rocketbed.chaos.plan.plan import Plan
from rocketbed.host.errors import HostError
from rocketbed.host.janitor.record import Ledger

Net = Literal["auto", "plain", "proxy", "switch"]


def make_fabric(net: Net, plan: Plan, run: Ledger) -> Fabric:
    """Return the requested network; `auto` is the switch if it is available, else the proxy.

    Raises `HostError` if it is not available.
    """
    machines = Machines.of(plan)
    if is_switch(net, instead="proxy"):
        return SwitchFabric(machines, run=run)
    return PlainFabric(machines) if net == "plain" else ProxyFabric(machines)


def is_switch(net: Net, *, instead: Net) -> bool:
    """Return whether the machines get the switch: it was requested, or is available.

    Raises `HostError` if it was requested and is not available.
    """
    missing = missing_for_switch()
    if net == "switch" and missing is not None:
        raise HostError(f"--net switch: {missing}; --net {instead} does not need it")
    return net in ("auto", "switch") and missing is None
