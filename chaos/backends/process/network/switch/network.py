"""Machines in network namespaces of their own, with every packet between them through our switch.

Each machine has an address 10.98.0.m on a TUN device whose other end is the switch process. These
addresses exist only inside: no packet leaves for any other network. Needs root and /dev/net/tun.
"""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Final, Self

import trio

from rocketbed.chaos.backends.process.network import netns
from rocketbed.chaos.backends.process.network.base import Machines, Network
from rocketbed.chaos.backends.process.network.switch.control import MTU, Switch
from rocketbed.chaos.backends.process.network.switch.process import TUN_DEVICE
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.janitor.cleaners import NETWORK_NAMESPACES, remove_network_namespace
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.api import World
from rocketbed.world.real import real_world

ENTER: Final = "nsenter"


def missing_for_switch() -> str | None:
    """Return what this machine lacks for a switch; None if it should work."""
    if os.geteuid() != 0:
        return "needs root"
    if not os.path.exists(TUN_DEVICE):
        return f"no {TUN_DEVICE}: the kernel or the container has no TUN devices"
    if shutil.which(ENTER) is None:
        return f"no {ENTER}; install util-linux"
    try:
        netns.check_right()
        os.close(os.open(TUN_DEVICE, os.O_RDWR))
    except OSError as error:
        return f"root lacks capabilities here: {error}"
    return None


class SwitchNetwork(Network):
    """Network between machines, with all its faults. An async context manager."""

    name = "switch"

    def __init__(self, machines: Machines, *, run: Ledger, mtu: int = MTU) -> None:
        super().__init__(machines)
        self.switch = Switch(run, seed=machines.seed)
        self._run = run
        self._mtu = mtu
        numbers = machines.numbers().items()
        self._addresses = {name: f"10.98.0.{number}" for name, number in numbers}
        self._records: dict[str, int] = {}
        self._silent: set[str] = set()

    async def __aenter__(self) -> Self:
        """Start the switch. Raises `OSError` without root or /dev/net/tun, `HostError` if the
        switch fails."""
        await self.switch.__aenter__()
        try:
            for name in self._addresses:
                await self._plug_in(name)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.switch.__aexit__()
        with trio.CancelScope(shield=True):
            for name in list(self._records):
                await self._remove(name)

    def lacks(self, capability: str) -> str | None:
        return None

    def command(self, machine: str, command: Sequence[str]) -> list[str]:
        """Return a command line with `nsenter`, which enters and becomes the command: same pid,
        same parent, same mounts.

        `ip netns exec` would give the process mounts of its own, which keep a volume busy after it
        was unmounted here.
        """
        path = NETWORK_NAMESPACES / self.namespace(machine)
        return [ENTER, f"--net={path}", "--", *command]

    def world(self, machine: str) -> World:
        """Return a world of this process whose sockets are created inside the machine."""
        return real_world(machine, new_socket=partial(netns.socket_inside, self.namespace(machine)))

    def namespace(self, machine: str) -> str:
        return f"rb-{self._run.id}-{machine}"

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Set one direction, in place of its former faults."""
        await self.switch.set_link(source, target, state)

    async def reset(self, first: str, second: str) -> None:
        await self.switch.reset(first, second)

    async def silence(self, machine: str) -> None:
        self._silent.add(machine)
        await self.switch.silence(machine)

    async def restore(self, machine: str) -> None:
        """Restart the machine's kernel, in effect: a new namespace, which knows no old
        connection."""
        if machine in self._silent:
            await self._remove(machine)
            await self._plug_in(machine)
            self._silent.discard(machine)

    async def _plug_in(self, machine: str) -> None:
        name = self.namespace(machine)
        self._records[machine] = self._run.note("netns", name)
        await self._make_namespace(machine)
        await self.switch.attach(machine, self._addresses[machine], name, self._mtu)

    async def _make_namespace(self, machine: str) -> None:
        """Create a namespace by the machine's name."""
        await trio.to_thread.run_sync(netns.make, self.namespace(machine))

    async def _remove(self, machine: str) -> None:
        await trio.to_thread.run_sync(remove_network_namespace, self.namespace(machine))
        self._run.forget(self._records.pop(machine))
